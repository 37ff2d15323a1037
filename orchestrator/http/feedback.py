"""Rewards: somebody's judgement of an answer, which experiments and people learn from.

A reward names the request's trace and the key that judged. Of each key the first reward on record
counts, in experiments always (`OutcomeLog`). A later one that differs is refused where the first is
known: not where two replicas are asked in the same moment, nor by a replica that cannot read what
another wrote because the store is down. Then both are on record.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import Conflict, StoreError
from orchestrator.http.rendering import trace_id_of
from orchestrator.state.outbox import Outbox


class Feedback(BaseModel):
    """The body of `POST /v1/feedback`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    trace_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
    reward: Annotated[float, Field(ge=0, le=1)]


async def is_first_feedback(
    outbox: Outbox, feedback: Feedback, key: str | None, ttl_s: float
) -> bool:
    """Whether no judgement of this answer by this key is known; one is from now on, for `ttl_s`
    seconds.

    Raises:
        Conflict: one is known, and it differs.
    """
    name = f"feedback/{trace_id_of(feedback.trace_id)}/{key or 'anybody'}"
    value = str(feedback.reward)
    try:
        before = await outbox.get(name)
    except StoreError:
        before = None
    # Another request may have judged it while the store was asked.
    before = outbox.waiting(name) or before
    if before is None or not _is_reward(before):
        outbox.put(name, value.encode(), ttl_s=ttl_s)
        return True
    if before != value.encode():
        raise Conflict("this answer was judged already, and otherwise; the first judgement stands")
    return False


def _is_reward(value: bytes) -> bool:
    """Whether a value is a judgement: a store may hold anything."""
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def reward(feedback: Feedback, record: dict[str, Any], key: str | None) -> dict[str, Any]:
    """The event of a judgement by `key`, 8 hex digits of its digest, of the answer whose trace is
    `record`."""
    about = {key: record.get(key) for key in ("policy", "version", "experiment", "arm")}
    return {
        "kind": "reward",
        "trace_id": trace_id_of(feedback.trace_id),
        "at": time.time(),
        "key": key,
        **about,
        "reward": feedback.reward,
    }
