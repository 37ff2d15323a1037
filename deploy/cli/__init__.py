"""The command line `baton`: a file for each command.

In reading order:

- `main`: the entry point: commands, exit statuses, errors in one line.
- `common`: options, progress bars and tables that several commands share.
- `pair`: who answers: a service, or both models in this process.
- `administration`: what `policy` and `experiment` share: reading a service's state, changing it.
- `serve`: run a deployment file.
- `ask`: one question.
- `trace`: one request step by step, and a recorded one replayed.
- `policy`: published versions of policies on a running service.
- `experiment`: A/B tests on a running service.
- `check_config`: check deployment files and Kubernetes manifests.
- `eval`: a problem set through several policies.
- `calibrate`: the threshold that meets a target.
- `learn`: a gate learned from recorded requests.
"""
