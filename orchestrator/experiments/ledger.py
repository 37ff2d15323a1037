"""What came of requests under an experiment, put together from its events.

Three kinds of events, each kept as one JSON object: an *exposure* when an arm takes effect, an
*outcome* when its request has ended (a shadow's too), a *reward* when somebody judged the answer.
Each names its request, so one that is delivered twice counts once. More keys are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.experiments.documents import Name

Text = Annotated[str, Field(max_length=256)]


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Exposure(_Event):
    """An arm took effect. `unit` is a digest; `probability` that with which the arm was drawn.

    `at` is in seconds since 1970. A forced exposure is on record and never analysed.
    """

    kind: Literal["exposure"] = "exposure"
    trace_id: Text
    at: float
    arm: Name
    unit: Text
    bucket: float = 0.0
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    forced: bool = False


class Outcome(_Event):
    """A request that ended; times in ms, None for what never came.

    `accepted` is the share of judged drafts that stayed, `prompt_tokens` those computed. The arm
    that served a request stands in its exposure. A `shadow` names its arm and the trace that it
    repeats; `agreement` says whether both answers are one.
    """

    kind: Literal["outcome"] = "outcome"
    trace_id: Text
    at: float
    arm: Name | None = None
    shadow: bool = False
    status: Literal["finished", "failed", "cancelled"] = "finished"
    ms: float | None = None
    first_step_ms: float | None = None
    small_tokens: int = 0
    large_tokens: int = 0
    prompt_tokens: int = 0
    accepted: float | None = None
    agreement: bool | None = None


class Reward(_Event):
    """What somebody thought of an answer, from 0 to 1; a later one replaces it."""

    kind: Literal["reward"] = "reward"
    trace_id: Text
    at: float
    reward: Annotated[float, Field(ge=0, le=1)]


Event = Exposure | Outcome | Reward
_EVENT: Final = TypeAdapter[Event](Annotated[Event, Field(discriminator="kind")])


def dump(event: Event) -> bytes:
    return json.dumps(event.model_dump(), separators=(",", ":")).encode()


def load(line: bytes) -> Event | None:
    """An event from its bytes; None for what is none, since a store may hold anything."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


@dataclass(slots=True)
class Request:
    """One request under an experiment: everything known of it so far."""

    exposure: Exposure
    outcome: Outcome | None = None
    reward: float | None = None
    shadows: dict[str, Outcome] = field(default_factory=dict)


class Ledger:
    """Events put together request by request, in whatever order they come."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._requests: dict[str, Request] = {}
        self._early: dict[str, list[Event]] = {}  # what came before its exposure

    def add(self, line: bytes) -> None:
        """Take one event from the record."""
        event = load(line)
        if event is None:
            self.unreadable += 1
        else:
            self.note(event)

    def note(self, event: Event) -> None:
        """Take one event."""
        request = self._requests.get(event.trace_id)
        if isinstance(event, Exposure):
            if request is None:
                self._requests[event.trace_id] = Request(event)
                for earlier in self._early.pop(event.trace_id, []):
                    self.note(earlier)
        elif request is None:
            self._early.setdefault(event.trace_id, []).append(event)
        elif isinstance(event, Reward):
            request.reward = event.reward
        elif event.shadow and event.arm is not None:
            request.shadows.setdefault(event.arm, event)
        elif not event.shadow and request.outcome is None:
            request.outcome = event

    @property
    def requests(self) -> list[Request]:
        """All requests with an exposure, in the order these were heard of."""
        return list(self._requests.values())

    def forget(self, keep: int) -> None:
        """Let go of the oldest requests beyond `keep`."""
        for trace_id in list(self._requests)[: max(0, len(self._requests) - keep)]:
            del self._requests[trace_id]
        for trace_id in list(self._early)[: max(0, len(self._early) - keep)]:
            del self._early[trace_id]


@dataclass(frozen=True, slots=True)
class Analysed:
    """The requests that an analysis may use, by arm, and how many it may not and why."""

    by_arm: Mapping[str, list[Request]]
    forced: int
    moved_units: int  # seen in two arms


def analysed(requests: Iterable[Request], arms: Iterable[str]) -> Analysed:
    """Leave out forced requests, and units that were seen in more than one arm."""
    by_arm: dict[str, list[Request]] = {name: [] for name in arms}
    kept, forced = [], 0
    seen: dict[str, str] = {}
    moved: set[str] = set()
    for request in requests:
        exposure = request.exposure
        if exposure.arm not in by_arm:
            continue
        if exposure.forced:
            forced += 1
            continue
        kept.append(request)
        if seen.setdefault(exposure.unit, exposure.arm) != exposure.arm:
            moved.add(exposure.unit)
    for request in kept:
        if request.exposure.unit not in moved:
            by_arm[request.exposure.arm].append(request)
    return Analysed(by_arm, forced, len(moved))
