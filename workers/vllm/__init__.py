"""vLLM's engine, run in the worker's own process; the only room of workers that imports vllm.

- `backend`: calls as requests to the engine.
- `requests`: parameters of vLLM's requests, and its outputs.
- `running`: a request while it runs, and what a call costs in requests.
- `token_ends`: tokens that end a step by themselves.
- `counter`: what its engine reports.
- `arguments`: `engine_args` and parameters of speculation, checked.
- `loading`: from a checkpoint and `engine_args` to a worker.
- `output`: what its engine process writes if it does not start.
- `scheduler`: vLLM's scheduler; here a request may say how much of a prompt to read again.
- `lifeline`: vLLM's process ends if the worker's has died.

vLLM is no dependency of Baton: an environment may have it, and its pins go before ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_lossy(speculation: Mapping[str, Any]) -> bool:
    """Whether vLLM's speculation with these parameters changes the text."""
    return speculation.get("rejection_sample_method", "standard") not in ("standard", "block")
