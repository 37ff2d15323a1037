"""Finds the errors of a deployment without a cluster: `baton check-config`.

In reading order:

- `files`: the command's inputs: deployment files, manifests, folders that kustomize renders.
- `documents`: YAML with the line of each entry.
- `deployment`: a deployment file: every key, and whether its parts fit each other.
- `schema`: manifests against Kubernetes' schemas and the RayService's.
- `cluster`: a RayService against the deployment in it: versions, GPUs, replicas, times.
"""
