"""What a deployment file may say of a service, and what a service is made of.

In reading order:

- `config`: the deployment file's `args`, typed: every key, its default and its checks.
- `calibration`: thresholds that were measured on a pair of models, and which pair that was.
- `store_spec`: the file's `store`: where replicas of the orchestrator meet.
- `workers`: from a worker's part of the file to a worker in this process or over a server.
- `extras`: whether the packages of an extra are installed.
- `stores`: the store that the file names: Redis, or a deployment that holds it in memory.
- `pools`: whether each worker answers, its context, and the sampling of its checkpoint.
- `scaling`: how many replicas a worker's pool should have.
- `proxy`: what stands before Serve's own HTTP handling: retries, errors in OpenAI's form, bodies.
- `body_room`: how much of large bodies is held there.
- `recent_refusals`: keys there that were just told that there is no place.
- `http_protocol`: connections there, whose headers are bounded in size and time.
"""
