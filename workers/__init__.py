"""Workers run or reach a model; each implements the port `orchestrator.worker.Worker`.

They know tokens and models, but no policy. Rooms, in reading order:

- `engine`: the built-in engine as a backend: a checkpoint in this process.
- `speculation`: the token loop, and one file for each method of token-level speculation.
- `model`: the target model's forward pass, its cache, token trees and sampling.
- `text`: prompts, tokenizers and detokenizers: between transcripts and token ids.
- `vllm`: vLLM's engine as a backend, in the worker's own process.
- `remote`: OpenAI-compatible servers as backends.
- `replica`: workers as pools of replicas on Ray Serve.
- `embedded`: the checkpoints that come with the service.

Files that several rooms share:

- `worker`: the port over any backend: `generate`, `classify` and `verify`, written once.
- `backend`: the interface below it: what an engine or a server does with token ids.
- `options`: options for loading a worker from a checkpoint.
- `run_ahead`: generations that decode on after their call, for the call that continues there.
- `streams`: batches of deltas, as a replica sends them.
- `retry`: when to call a server again after a failure: retries and the circuit breaker.
- `rng`: random numbers as a function of seed and position.
- `memo`: caches bounded by bytes.
- `top_logprobs`: estimates from the likeliest tokens of a position, if no others are returned.
- `control_groups`: the memory and the cores that a container may use.
- `heap`: freed memory goes back to the system.
- `reporting`: call times and error messages, the same for every worker.
"""
