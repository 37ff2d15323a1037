"""The deployment's settings of a replica's HTTP service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import Field

from orchestrator.types import TokenPrices
from orchestrator.validation import StrictModel

ReasoningField = Literal["reasoning_content", "reasoning", "both"]
REASONING_FIELDS: Final[dict[ReasoningField, tuple[str, ...]]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}


class ServiceLimits(StrictModel):
    """The limits of one replica: `limits` of the deployment file."""

    concurrent: int = Field(default=64, ge=1)  # answers at once; one more waits
    # Seconds until a request that waits for a place gets 429; up to ten times as long for a key
    # with less than an equal share of the places.
    wait_s: float = Field(default=1.0, ge=0)
    # Prompt tokens of one key's requests at once; more get 429. None: no limit.
    prompt_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=2048, ge=1)  # if a request names no cap
    max_tokens_cap: int = Field(default=32_768, ge=1)  # the most that a request may name
    choices: int = Field(default=16, ge=1)  # the most answers (n) that a request may want
    deadline_s: float = Field(default=600.0, gt=0)  # wall time of a request
    body_bytes: int = Field(default=1 << 20, ge=1024)  # a larger body gets 413
    complete: bool = False  # 503 instead of an answer made without a worker that the policy called


class WhenBusy(StrictModel):
    """What the model name `baton` means while a replica makes many answers at once.

    A machine whose models compute all the time gains nothing from sharing: the large model reads a
    token of the small one in about the time in which it writes one.
    """

    answers: int = Field(ge=1)  # while as many are being made, or more
    policy: str = "large-only"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a replica waits for its clients, and lets them wait."""

    body_s: float = 30.0  # for a body to arrive
    send_s: float = 60.0  # for a client to take what was sent, before it counts as gone
    ping_s: float = 5.0  # silence in a stream after which a comment is sent
    headers_s: float = 20.0  # for the first event, before a stream begins without it


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How requests are read and answered.

    `reasoning_field` names the fields of a message that hold the thought; by default one, since
    clients that read both show it twice. Unless `strict`, parameters that cannot be honoured are
    left out with a warning. `loopback`: the Host header must name this machine, so that no other
    site's page can use the service.
    """

    limits: ServiceLimits = field(default_factory=ServiceLimits)
    reasoning_field: ReasoningField = "reasoning_content"
    strict: bool = True
    cors_origins: Sequence[str] = ()  # of web pages that may use the service; "*": all
    proxy_adds_request_id: bool = False  # to responses, as Serve's does
    loopback: bool = False
    trace_ttl_s: float = 24 * 3600.0  # how long traces stay in the store
    prices: TokenPrices | None = None  # at which a policy's `max_cost` is counted
    remarks: Mapping[str, str] = field(default_factory=dict)  # added to an answer, by the answer
    notes: Sequence[str] = ()  # sentences about the deployment, for users
    patience: Patience = Patience()
