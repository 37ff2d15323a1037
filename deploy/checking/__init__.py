"""What is wrong with a deployment, without a cluster: `baton check-config`.

In reading order:

- `files`: what the command is given: deployment files, manifests, folders of overlays.
- `located_yaml`: YAML whose entries know their file and line.
- `kustomize`: an overlay's manifests, every entry with its place in the source files.
- `deployment`: a deployment file: every key, and whether its parts fit each other.
- `schema`: manifests against Kubernetes' schemas and the RayService's.
- `operator`: what KubeRay's operator refuses beyond its schema.
- `cluster`: a RayService against the deployment in it: versions, GPUs, replicas, times.
- `network`: NetworkPolicies against the addresses the deployment needs.
"""
