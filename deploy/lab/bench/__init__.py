"""Benchmarks: token-level methods, weights, calls of workers, and Baton's cost as a thought grows.

Commands: `baton lab bench-decode`, `bench-weights`, `bench-calls`; the rest is for `make bench`.

In reading order:

- `run`: one run: load, take turns, predict, report.
- `candidates`: our methods with their parameters, and transformers' own loops.
- `rounds`: turns on the same prompts; speeds, ratios and acceptance with intervals.
- `turn_log`: the turns in a file; a run that stopped continues from there.
- `divergence`: where greedy texts part from plain decoding's, and by which margin.
- `tables`: the tables.
- `weights`: perplexity and the time of a pass, by the type of the weights.
- `calls`: workers side by side, by the time of a call.
- `vllm_calls`: where the time of a call over vLLM goes, beside vLLM's own calls.
- `instant`: workers that answer at once.
- `round_trip`: a call to a replica beside Serve's own bare call.
- `length`: the cost of a step and of a remote delta as a thought grows.
- `memory`: the memory that a live request holds.
"""
