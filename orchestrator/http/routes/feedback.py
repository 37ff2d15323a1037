"""Rewards: ratings of answers, which experiments and people learn from.

A reward names the request's trace and the key that rated it. Each key's first reward of an answer
counts, in experiments always (`OutcomeLog`). A later one that differs is refused if the first is
known. Two replicas may both record one if they get them at the same moment, or without the store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from orchestrator.errors import Conflict, StoreError
from orchestrator.experiments.outcome_log import Reward
from orchestrator.http.body import Given
from orchestrator.http.records import trace_id_of
from orchestrator.state.outbox import Outbox


class Feedback(Given):
    """The body of `POST /v1/feedback`."""

    trace_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
    reward: Annotated[float, Field(ge=0, le=1)]


async def record_if_first(
    outbox: Outbox, feedback: Feedback, key: str | None, ttl_s: float
) -> bool:
    """Record a key's first rating of an answer for `ttl_s` seconds; return whether it was.

    Raises:
        Conflict: one is known, and it differs.
    """
    name = f"feedback/{trace_id_of(feedback.trace_id)}/{key or 'anybody'}"
    value = str(feedback.reward).encode()
    try:
        before = await outbox.get(name)
    except StoreError:
        before = None
    # Another request may have rated it meanwhile.
    before = outbox.waiting(name) or before
    if before is None or not _is_reward(before):
        outbox.put(name, value, ttl_s=ttl_s)
        return True
    if before != value:
        raise Conflict("conflicting feedback exists; the first is kept")
    return False


def _is_reward(value: bytes) -> bool:
    """Return whether a stored value is a rating: a store may hold anything."""
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def reward(feedback: Feedback, record: Mapping[str, Any], key: str | None) -> Reward:
    """Return the event of a rating by `key` (8 hex digits of its digest); `record` is the answer's
    trace, whose invalid fields are left out."""
    fields = {name: record.get(name) for name in ("policy", "version", "experiment", "arm")}
    fields |= {
        "trace_id": trace_id_of(feedback.trace_id),
        "at": time.time(),
        "key": key,
        "reward": feedback.reward,
    }
    try:
        return Reward.model_validate(fields)
    except ValidationError as error:  # another program may have written the record
        for wrong in error.errors():
            del fields[str(wrong["loc"][0])]
        return Reward.model_validate(fields)
