"""What became of requests, as events that experiments and people learn from.

Two kinds, each one JSON object in the stream `OUTCOMES`: an *outcome* when a request has ended, a
*reward* when somebody judged its answer. Both name the request's trace, so one that is delivered
twice counts once, and a later reward replaces an earlier one.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.http.rendering import Order, Story
from orchestrator.http.schemas import invalid, parse_object

OUTCOMES: Final = "outcomes"


class Feedback(BaseModel):
    """The body of `POST /v1/feedback`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    trace_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
    reward: Annotated[float, Field(ge=0, le=1)]


def parse_feedback(body: bytes) -> Feedback:
    """Feedback from its bytes.

    Raises:
        InvalidRequest: not JSON, an unknown key, or a value out of bounds; named.
    """
    try:
        return Feedback.model_validate(parse_object(body))
    except ValidationError as error:
        raise invalid(error) from None


def outcome(order: Order, story: Story, status: str) -> dict[str, Any]:
    """A request that ended; times in ms, None for what never came.

    `status` is finished, failed or cancelled. `overrides` names the parameters that the request
    set itself: where there are any, it says little about the version. `accepted` is the share of
    judged drafts that stayed, `prompt_tokens` are those computed. `speculation` is what the large
    worker decoded with, marked where it is lossy.
    """
    choice, metrics = order.choice, story.metrics
    return {
        "kind": "outcome",
        "trace_id": order.trace_id,
        "at": time.time(),
        "policy": choice.name,
        "version": choice.version,
        "speculation": order.speculation.get("large"),
        "overrides": list(choice.overrides),
        "experiment": choice.experiment,
        "arm": choice.arm,
        "status": status,
        "finish_reason": None if story.ended is None else story.ended.transcript.finish,
        "ms": story.ms,
        "first_step_ms": story.first_step_ms,
        "small_tokens": metrics.small_tokens,
        "large_tokens": metrics.large_tokens,
        "discarded_tokens": metrics.discarded_tokens,
        "prompt_tokens": metrics.prefill_tokens,
        "accepted": metrics.acceptance_rate,
    }


def reward(given: Feedback, record: dict[str, Any]) -> dict[str, Any]:
    """Somebody's judgement of the answer whose trace `record` is; empty where none was at hand."""
    about = {key: record.get(key) for key in ("policy", "version", "experiment", "arm")}
    return {
        "kind": "reward",
        "trace_id": given.trace_id,
        "at": time.time(),
        **about,
        "reward": given.reward,
    }
