"""The request that the step loop answers."""

from __future__ import annotations

from asyncio import Event
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.types import GREEDY, Limits, Message, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """The messages, and how they are answered.

    Logs, traces and every call have the `id`. `speculation` names the large worker's token-level
    method, of which no policy knows; None: the worker's default. Workers share cached prefixes
    within one `owner`. Requests of one `session` prefer one replica of each worker.
    `limits.deadline_s` counts from `began_at`, a time of the event loop; None: from now. An answer
    that `remarks` has is followed by its remark, by the author `policy`. Once `hurry` is set, the
    thought ends, and the answer follows.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = GREEDY
    limits: Limits = Limits()  # noqa: RUF009 it is frozen
    speculation: str | None = None
    owner: str = ""
    session: str = ""
    began_at: float | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    hurry: Event | None = None
