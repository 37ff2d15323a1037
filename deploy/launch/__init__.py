"""From a deployment file to something that runs on this machine; what a service itself never needs.

In reading order:

- `deployment_file`: a file, read and checked.
- `plan`: such a file for two models, from a look at the machine.
- `quantization`: how many bits the weights of a quantized checkpoint have.
- `environment`: the variables that Ray reads when it is imported.
- `cluster`: a Ray of our own on this machine, for `baton serve`.
- `workers`: both workers in one process, for tools.
"""
