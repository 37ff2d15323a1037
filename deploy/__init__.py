"""The composition root, where names become objects: it imports everything, nothing imports it.

- `app`: builds the Ray Serve application from a deployment file's `args`.
- `service`: what a deployment file may say of a service, and what a service is made of.
- `telemetry`: metrics, logs and spans of a running service.
- `launch`: from a deployment file to something that runs on this machine.
- `cli`: the command line `baton`.
- `evaluation`: policies measured side by side, calibrated, replayed.
- `lab`: the laboratory, which is not in the wheel.
- `install`: a checkout and its packages, by `make`.
- `checking`: deployments checked without a cluster.

The first three serve; the others are tools that no request needs. Files for deployers lie beside
them: deployment files (`local.yaml`, `gpu.yaml`, `remote.yaml`), `kubernetes/`, `grafana/`
and `experiments/`.
"""
