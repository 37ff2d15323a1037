"""What one replica of the HTTP surface takes on."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.types import TokenPrices


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Times in seconds, sizes in bytes, `max_tokens` in tokens."""

    concurrent: int = 64  # answers at once; one more waits
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
