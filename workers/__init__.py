"""Workers: whatever runs or reaches a model, behind the port `orchestrator.worker.Worker`.

They know tokens and models, and no policy. Rooms, in reading order:

- `engine`: the built-in engine: a checkpoint in this process.
- `speculation`: the token loop, and one file for each method of token-level speculation.
- `model`: the target model's forward pass, its cache, token trees and sampling.
- `text`: prompts, tokenizers and detokenizers: between transcripts and token ids.
- `vllm`: workers over vLLM's engine, in the worker's own process.
- `remote`: workers over OpenAI-compatible servers.
- `replica`: workers as pools of replicas on Ray Serve.
- `embedded`: the checkpoints that come with the service.

Files that several rooms share:

- `streams`: the stream protocol: batches of deltas, heartbeats, resuming a stream that broke off.
- `retry`: when to call a server again after a failure: retries and the circuit breaker.
- `memo`: results that are kept within a number of bytes.
- `top_logprobs`: estimates from the likeliest tokens at a position, where no more is shown.
- `reporting`: what answers and errors of every worker say alike.
- `scripted`: a worker that plays back given answers, for tests and examples.
"""
