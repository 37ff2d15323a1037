"""What the deployment decides about one replica's HTTP surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.types import TokenPrices

ReasoningField = Literal["reasoning_content", "reasoning", "both"]
REASONING_FIELDS: Final[dict[ReasoningField, tuple[str, ...]]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Times in seconds, sizes in bytes, `max_tokens` in tokens."""

    concurrent: int = 64  # answers at the same time; one more waits
    wait_s: float = 1.0  # for a place, before a request is refused with 429
    prompt_tokens: int | None = None  # of one key's live requests; one more is refused with 429
    max_tokens: int = 2048  # for a request that names none
    max_tokens_cap: int = 32_768  # the most that a request may name
    choices: int = 16  # the most answers that a request may want
    deadline_s: float | None = 600.0  # wall time of a request; None: no limit
    body_bytes: int = 1 << 20
    body_s: float = 30.0  # for a body to arrive
    send_s: float = 60.0  # for a client to take what was sent, before it counts as gone
    prices: TokenPrices | None = None  # what a policy's `max_cost` is counted by
    complete: bool = False  # a failure that a policy could work around ends the request by 503
    ping_s: float = 5.0  # silence in a stream after which a comment is sent
    headers_s: float = 20.0  # for the first event, before a stream begins without it


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How requests are read and answered.

    `reasoning_field` names the fields of a message that hold the thought: one, since clients that
    read both show it twice. Unless `strict`, parameters that cannot be honoured are left out with a
    warning. `cors_origins` are the origins of web pages that a browser may let ask the service;
    "*": all. `proxy_adds_request_id`: a proxy before the service adds `x-request-id` to responses,
    as Serve's does. `loopback`: only this machine may ask, so pages elsewhere that point here are
    refused. Traces stay in the store for `trace_ttl_s` seconds.
    """

    limits: ServiceLimits = field(default_factory=ServiceLimits)
    reasoning_field: ReasoningField = "reasoning_content"
    strict: bool = True
    cors_origins: Sequence[str] = ()
    proxy_adds_request_id: bool = False
    loopback: bool = False
    trace_ttl_s: float = 24 * 3600.0

    @property
    def reasoning_fields(self) -> tuple[str, ...]:
        """The fields of a message that hold the thought."""
        return REASONING_FIELDS[self.reasoning_field]
