"""Options for loading a worker from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from workers.text.thinking import AUTO, ThinkingFormat


class LoadOptions(TypedDict, total=False):
    """The options that every engine takes."""

    device: str  # a torch device; for vLLM "cuda", or "cpu" if it is its build for CPUs
    speculation: Mapping[str, Any] | None  # {"method": NAME, **parameters}; None: plain decoding
    rows: int  # calls served at once
    max_len: int | None  # longest sequence, in tokens (None: the checkpoint's own)
    queue: int  # calls that may wait beside `rows`; further ones raise `Overloaded`
    threads: int | None  # of the CPU (None: the engine's choice)
    run_ahead: int  # tokens that an idle engine decodes after a call, for the one that continues it
    share: float  # the fraction of the GPU's memory that the process may use
    thinking: ThinkingFormat | str  # how the model marks its thought; see `Tokenizer`


DEFAULTS: Final[LoadOptions] = {
    "device": "cpu",
    "speculation": None,
    "rows": 8,
    "max_len": None,
    "queue": 64,
    "threads": None,
    "run_ahead": 0,
    "share": 1.0,
    "thinking": AUTO,
}
