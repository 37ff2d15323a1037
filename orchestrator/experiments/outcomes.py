"""What came of requests under an experiment: events as they are kept, metrics as they are compared.

Three kinds of events, each kept as one JSON object: an *exposure* when an arm takes effect, an
*outcome* when its request has ended (a shadow's too), a *reward* when somebody judged the answer.
Each names its request, so one that is delivered twice counts once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.experiments.documents import Document, MetricName, Name, Prices

Text = Annotated[str, Field(max_length=256)]


class Exposure(Document):
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


class Outcome(Document):
    """A request that ended; times in ms, None for what never came.

    `accepted` is the share of judged drafts that stayed, `prompt_tokens` those computed. A
    `shadow`'s trace is that of the request it repeats, `agreement` whether both answers are one.
    """

    kind: Literal["outcome"] = "outcome"
    trace_id: Text
    at: float
    arm: Name
    shadow: bool = False
    status: Literal["finished", "failed", "cancelled"] = "finished"
    ms: float | None = None
    first_step_ms: float | None = None
    small_tokens: int = 0
    large_tokens: int = 0
    prompt_tokens: int = 0
    accepted: float | None = None
    agreement: bool | None = None


class Reward(Document):
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
        elif event.shadow:
            request.shadows.setdefault(event.arm, event)
        elif request.outcome is None:
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


Part = tuple[float, float] | None
"""A request's numerator and denominator; None where it says nothing about the metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Something to compare: sums over requests, one divided by the other.

    `bounded` metrics lie in [0, 1]. `of` takes an outcome (None while there is none), the reward
    and the prices.
    """

    title: str
    better: Literal["lower", "higher"]
    bounded: bool
    of: Callable[[Outcome | None, float | None, Prices], Part]

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.better == "higher" else -1


def _time(name: Literal["ms", "first_step_ms"]) -> Callable[..., Part]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
        value = None if outcome is None or outcome.status != "finished" else getattr(outcome, name)
        return None if value is None else (value, 1.0)

    return of


def _tokens(name: Literal["small_tokens", "large_tokens"]) -> Callable[..., Part]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
        done = outcome is not None and outcome.status == "finished"
        return (float(getattr(outcome, name)), 1.0) if done else None

    return of


def _large_share(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    if outcome is None or outcome.status != "finished":
        return None
    total = outcome.small_tokens + outcome.large_tokens
    return (outcome.large_tokens, total) if total else None


def _cost(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    # What was begun is paid for, however it ended.
    if outcome is None or not (prices.small or prices.large or prices.prompt):
        return None
    paid = (
        outcome.small_tokens * prices.small
        + outcome.large_tokens * prices.large
        + outcome.prompt_tokens * prices.prompt
    )
    return paid / 1e6, 1.0


def _accepted(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    return None if outcome is None or outcome.accepted is None else (outcome.accepted, 1.0)


def _agreement(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    told = None if outcome is None else outcome.agreement
    return None if told is None else (float(told), 1.0)


def _reward(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    return None if reward is None else (reward, 1.0)


def _error(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    # One that its client cancelled is neither a success nor a failure.
    if outcome is None or outcome.status == "cancelled":
        return None
    return float(outcome.status == "failed"), 1.0


METRICS: Final[dict[MetricName, Metric]] = {
    "ms": Metric("latency, ms", "lower", False, _time("ms")),
    "first_step_ms": Metric("time to the first step, ms", "lower", False, _time("first_step_ms")),
    "small_tokens": Metric("tokens by small", "lower", False, _tokens("small_tokens")),
    "large_tokens": Metric("tokens by large", "lower", False, _tokens("large_tokens")),
    "large_share": Metric("share of large tokens", "lower", True, _large_share),
    "cost": Metric("cost of a request", "lower", False, _cost),
    "accepted": Metric("accepted share of drafts", "higher", True, _accepted),
    "agreement": Metric("answers that agree", "higher", True, _agreement),
    "reward": Metric("reward", "higher", True, _reward),
    "error": Metric("share of errors", "lower", True, _error),
}


def parts(
    requests: Iterable[Request], metric: MetricName, prices: Prices
) -> Iterator[tuple[Request, float, float]]:
    """Each request that says something about the metric, with numerator and denominator."""
    of = METRICS[metric].of
    for request in requests:
        found = of(request.outcome, request.reward, prices)
        if found is not None:
            yield request, *found


def pairs(
    requests: Iterable[Request], shadow: str, metric: MetricName, prices: Prices
) -> Iterator[tuple[Request, float]]:
    """Each request that a shadow repeated, with the shadow's value minus that of the served arm.

    Agreement is the pair's own; errors and what follows from them count on both sides.
    """
    of = METRICS[metric].of
    for request in requests:
        mine = of(request.shadows.get(shadow), None, prices)
        if mine is None or metric == "reward":
            continue
        if metric == "agreement":
            yield request, mine[0]
            continue
        theirs = of(request.outcome, None, prices)
        if theirs is not None:
            yield request, mine[0] / mine[1] - theirs[0] / theirs[1]
