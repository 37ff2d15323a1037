"""Finds the errors of a deployment without a cluster: `baton check-config`.

In reading order:

- `files`: the command's inputs: deployment files, manifests, folders of overlays.
- `documents`: YAML with the file and line of each entry.
- `overlay`: a kustomize folder, rendered by kustomize or kubectl.
- `deployment`: a deployment file: every key, and whether its parts fit each other.
- `schema`: manifests against Kubernetes' schemas and the RayService's.
- `rayservice`: the parts of a RayService manifest.
- `cluster`: a RayService against the deployment in it: versions, GPUs, replicas, times.
"""
