"""What a deployment file may say of a service, and what a service is made of.

In reading order:

- `config`: the deployment file's `args`, typed: every key, its default and its checks.
- `worker_spec`: the file's `workers`.
- `calibration`: thresholds that were measured on a pair of models, and the pair's name.
- `overrides`: the environment's settings in place of a file's.
- `store_spec`: the file's `store`, which replicas of the orchestrator share.
- `workers`: makes a worker, in this process or over a server, from its part of the file.
- `extras`: checks that the packages of an extra are installed.
- `stores`: the store that the file names: Redis, or a deployment that holds it in memory.
- `pools`: whether each worker answers, its context, and the sampling of its checkpoint.
- `notes`: sentences about a deployment, for its users.
- `scaling`: how many replicas there should be.
- `proxy`: middleware before Serve's own HTTP handling: retries, errors in OpenAI's form, bodies.
- `direct`: passes requests from a proxy to the orchestrator's replicas.
- `starting`: what the proxy answers before a replica of the orchestrator does.
- `bodies`: gathers bodies in the proxy, in bounded memory.
- `recent_refusals`: API keys whose last request got 429: the proxy gives the next ones the same.
- `http_protocol`: connections of the proxy, with limits on the size and time of headers.
"""
