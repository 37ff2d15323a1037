"""What is wrong with a deployment, without a cluster: `baton check-config`.

In reading order:

- `files`: what the command is given: deployment files, manifests, folders of overlays.
- `documents`: YAML whose entries know their file and line.
- `overlay`: a kustomize folder, rendered by kustomize or kubectl.
- `deployment`: a deployment file: every key, and whether its parts fit each other.
- `schema`: manifests against Kubernetes' schemas and the RayService's.
- `rayservice`: where things are in a RayService.
- `cluster`: a RayService against the deployment in it: versions, GPUs, replicas, times.
- `network`: NetworkPolicies against the addresses the deployment needs.
"""
