"""What a worker over a checkpoint may be loaded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from workers.text.thinking import AUTO, ThinkingFormat


class LoadOptions(TypedDict, total=False):
    """What every engine has.

    Attributes:
        device: a torch device; for vLLM "cuda", or "cpu" if it is its build for CPUs.
        speculation: `{"method": NAME, **parameters}`; None or vanilla: plain decoding.
        rows: most calls served at once; `queue` more may wait, then `Overloaded`.
        max_len: longest sequence, in tokens (None: the checkpoint's own).
        threads: of the CPU (None: the engine's choice).
        run_ahead: tokens that a row decodes after its call has ended, while no call is served;
            the call that continues from there takes them.
        share: of the GPU's memory, which the process keeps to.
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
