"""Benchmarks: token-level methods, weights, and calls of workers.

In reading order:

- `run`: one run of `baton lab bench-decode`: load, take turns, report.
- `candidates`: our methods with their parameters, and transformers' own loops.
- `rounds`: turns on the same prompts; speeds, ratios and acceptance with intervals.
- `weights`: perplexity and the time of a pass, by the type of the weights.
- `calls`: calls that are timed, after thoughts that no request has read.
- `vllm_calls`: where the time of a call over vLLM goes, beside vLLM's own calls.
"""
