"""Options for loading a worker from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from workers.text.thinking import AUTO, ThinkingFormat


class LoadOptions(TypedDict, total=False):
    """The options that every engine takes.

    Attributes:
        device: a torch device; for vLLM "cuda", or "cpu" if it is its build for CPUs.
        speculation: `{"method": NAME, **parameters}`; None or vanilla: plain decoding.
        rows: calls served at once; `queue` more may wait, and further ones raise `Overloaded`.
        max_len: longest sequence, in tokens (None: the checkpoint's own).
        threads: of the CPU (None: the engine's choice).
        run_ahead: tokens that an idle engine decodes after a call has ended, for the call that
            continues it.
        share: the fraction of the GPU's memory that the process may use.
        thinking: how the model marks its thought; see `workers.text.tokenizer.Tokenizer`.
    """

    device: str
    speculation: Mapping[str, Any] | None
    rows: int
    max_len: int | None
    queue: int
    threads: int | None
    run_ahead: int
    share: float
    thinking: ThinkingFormat | str


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
