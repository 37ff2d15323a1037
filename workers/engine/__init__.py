"""The built-in engine: a checkpoint in our own process.

- `backend`: calls as requests to the engine.
- `requests`: what the engine serves (generate, score), and the caller's handle on it.
- `engine`: the thread that admits, prefills, decodes in batches and retires; it runs the token loop
  (`workers/speculation/decode.py`) once an iteration.
- `run_ahead`: rows that decode on after their call, for the call that continues there.
- `prefill`: which prompts share a pass.
- `prefix_cache`: which slot of the cache a request gets, and how much of its prompt is there.
- `loading`: from the name of a checkpoint to a worker.
- `weights`: a checkpoint's tensors, checked against its config.
- `gguf_checkpoint`: the config and weights of a GGUF file.
- `memory`: what a checkpoint takes of a GPU, and the share that a process keeps to.
"""
