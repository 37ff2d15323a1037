"""From a deployment file to something that runs on this machine; what a service itself never needs.

In reading order:

- `deployment_file`: a file, read and checked.
- `plan`: such a file for two models, with the policy by which they share.
- `source`: a model as the command line names it.
- `served`: a model on a server, as the server's answers show it.
- `sizes`: what a machine has, and what a model needs.
- `placement`: where models run on this machine.
- `quantization`: how many bits the weights of a quantized checkpoint have.
- `environment`: the variables that Ray reads when it is imported.
- `ray_node`: a Ray of our own on this machine.
- `cluster`: a deployment on it, for `baton serve`.
- `meanwhile`: the service's port before its proxy listens there.
- `watch`: what dies while a service runs.
- `workers`: both workers in one process, for tools.
"""
