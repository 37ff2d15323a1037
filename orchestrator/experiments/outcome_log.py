"""The log of an experiment: its events, joined by request.

Three kinds of events, each one JSON object: an *exposure* when an arm takes effect, an *outcome*
when its request has ended (or its shadow), a *reward* when a user judged the answer. Each names its
request, so an event that is delivered twice counts once. Unknown keys are ignored.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import monotonic
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.experiments.documents import Name
from orchestrator.experiments.runs import Run
from orchestrator.state.outbox import EVENTS_KEPT
from orchestrator.state.store import Store

Text = Annotated[str, Field(max_length=256)]
MOST_TOKENS: Final = 2**53 - 1
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Status = Literal["finished", "failed", "cancelled"]
TimeName = Literal["ms", "first_step_ms"]
TIMES: Final[tuple[TimeName, ...]] = ("ms", "first_step_ms")
BATCH: Final = 1000  # events read at once
KEPT: Final = 100_000  # requests of one run in memory


class _Event(BaseModel):
    """`at`: seconds since 1970; `OutcomeLog` replaces it by the store's clock, since clocks of
    replicas may differ."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Exposure(_Event):
    """An arm took effect. `unit` is a digest."""

    kind: Literal["exposure"] = "exposure"
    trace_id: Text
    at: float
    arm: Name
    unit: Text


class _AnswerEvent(_Event):
    """An event about the answer of a policy's version (0: the deployment file's)."""

    policy: Text | None = None
    version: int | None = None
    experiment: Text | None = None
    arm: Name | None = None


class Outcome(_AnswerEvent):
    """The end of a request; times in ms.

    `overrides` names the policy's parameters that the request set; such a request says little about
    the version. `speculation` is the large worker's method. `accepted` is the share of judged
    drafts that were accepted; `prompt_tokens` counts those computed, not cached. The exposure names
    the arm that served the request. A `shadow` outcome names its arm and the trace of the served
    request; `agreement`: both answers have the same value. `refused`: the request can never be
    answered (a 4xx, except that of a policy that cannot run here). `key` is 8 hex digits of the API
    key's digest.
    """

    kind: Literal["outcome"] = "outcome"
    trace_id: Text
    at: float
    overrides: tuple[Text, ...] = ()
    speculation: Text | None = None
    shadow: bool = False
    status: Status = "finished"
    finish_reason: Text | None = None
    refused: bool = False
    ms: float | None = None
    first_step_ms: float | None = None
    small_tokens: Tokens = 0
    large_tokens: Tokens = 0
    discarded_tokens: Tokens = 0
    prompt_tokens: Tokens = 0
    accepted: float | None = None
    agreement: bool | None = None
    key: Text | None = None

    @property
    def censored(self) -> bool:
        """Whether it ended without an answer, so that its times are lower bounds."""
        return self.status != "finished" and not self.refused

    def time(self, name: TimeName) -> float | None:
        """Return a time in ms, None if the request was refused; a lower bound if it is censored."""
        if self.refused:
            return None
        if name == "first_step_ms" and (
            self.status == "finished" or self.first_step_ms is not None
        ):
            return self.first_step_ms
        return self.ms


class Reward(_AnswerEvent):
    """A judgement of an answer, from 0 to 1, by `key` (8 hex digits of its digest, None without
    keys). Each key's first judgement on record counts."""

    kind: Literal["reward"] = "reward"
    trace_id: Text
    at: float
    key: Text | None = None
    reward: Annotated[float, Field(ge=0, le=1)]


Event = Exposure | Outcome | Reward
_EVENT: Final = TypeAdapter[Event](Annotated[Event, Field(discriminator="kind")])


def parse_event(line: bytes) -> Event | None:
    """Return an event of the store; None if another program wrote the line."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


@dataclass(slots=True)
class RequestRecord:
    """One request under an experiment: its events so far; `rewards` by key."""

    exposure: Exposure
    outcome: Outcome | None = None
    rewards: dict[str | None, float] = field(default_factory=dict)
    shadows: dict[str, Outcome] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """The mean over the keys that judged the answer."""
        return fmean(self.rewards.values()) if self.rewards else None


class OutcomeLog:
    """Events joined by request; they may come in any order."""

    def __init__(self, counts_rewards_of: Callable[[str | None], bool] = lambda key: True) -> None:
        self._counts_rewards_of = counts_rewards_of
        self._requests: OrderedDict[str, RequestRecord] = OrderedDict()
        self._early: OrderedDict[str, list[Event]] = OrderedDict()  # before their exposure

    def add(self, line: bytes, at: float) -> None:
        """Add one event from the store, which got it at the time `at` of its clock."""
        if (event := parse_event(line)) is not None:
            self.add_event(event.model_copy(update={"at": at}))

    def add_event(self, event: Event) -> None:
        request = self._requests.get(event.trace_id)
        if isinstance(event, Reward) and not self._counts_rewards_of(event.key):
            return
        if isinstance(event, Exposure):
            if request is None:
                self._requests[event.trace_id] = RequestRecord(event)
                for earlier in self._early.pop(event.trace_id, []):
                    self.add_event(earlier)
        elif request is None:
            self._early.setdefault(event.trace_id, []).append(event)
        elif isinstance(event, Reward):
            request.rewards.setdefault(event.key, event.reward)
        elif event.shadow and event.arm is not None:
            request.shadows.setdefault(event.arm, event)
        elif not event.shadow and request.outcome is None:
            request.outcome = event

    @property
    def count(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> list[RequestRecord]:
        """All requests with an exposure, in the order of their exposures."""
        return list(self._requests.values())

    def forget(self, keep: int) -> None:
        """Drop the oldest requests beyond `keep`."""
        for kept in (self._requests, self._early):
            while len(kept) > keep:
                kept.popitem(last=False)


class LogReader:
    """The events of one run, read from its stream as they come; `events` counts them."""

    def __init__(self, run: Run) -> None:
        self.outcomes, self.events = OutcomeLog(run.experiment.counts_rewards_of), 0
        self.position = ""  # of the last event
        self.forgotten = False  # whether the store or this replica dropped requests
        # The store's clock is ahead of ours by this much, or more.
        self._ahead = max(run.state.started, run.state.step_since) - monotonic()
        self._stream = run.stream
        self._reading = asyncio.Lock()

    async def read(self, store: Store) -> None:
        """Read the new events."""
        async with self._reading:
            before = self.events
            while entries := await store.read(self._stream, after=self.position, count=BATCH):
                for entry in entries:
                    self.outcomes.add(entry.event, entry.time)
                self.events += len(entries)
                self.position = entries[-1].at
                self._ahead = max(self._ahead, entries[-1].time - monotonic())
                await asyncio.sleep(0)  # requests go first
            # This many at once fill the stream, so earlier ones may have been dropped.
            self.forgotten |= self.events - before >= EVENTS_KEPT or self.outcomes.count > KEPT
            self.outcomes.forget(KEPT)

    @property
    def now(self) -> float:
        """The time by the store's clock, or a little earlier, computed from the events' times.

        This machine's clock may differ from those of others.
        """
        return monotonic() + self._ahead

    @property
    def since(self) -> float | None:
        """The time of the first request that is left; None if no request was dropped."""
        if not self.forgotten:
            return None
        return min((one.exposure.at for one in self.outcomes.requests), default=self.now)


ByArm = Mapping[str, Sequence[RequestRecord]]
"""Requests by the arm that served them."""


def served_by(arms: Iterable[str], requests: Iterable[RequestRecord]) -> ByArm:
    """Return the requests that each of these arms served."""
    by_arm: dict[str, list[RequestRecord]] = {name: [] for name in arms}
    for request in requests:
        if request.exposure.arm in by_arm:
            by_arm[request.exposure.arm].append(request)
    return by_arm


def comparable(by_arm: ByArm) -> dict[str, list[RequestRecord]]:
    """Return the requests with times that arms may be compared by.

    A cancelled request would have taken longer than its client waited, and a failed one has no
    answer. If they were left out, a slow arm whose clients give up would look fast, so they get the
    worst times of all arms. A limit on one arm uses that arm's times alone (`Outcome.time`).
    """
    outcomes = [one.outcome for own in by_arm.values() for one in own if one.outcome is not None]
    worst: dict[TimeName, float | None] = {}
    for name in TIMES:
        known = (time for one in outcomes if (time := one.time(name)) is not None)
        worst[name] = max(known, default=None)
    return {name: [_with_worst(request, worst) for request in own] for name, own in by_arm.items()}


def _with_worst(request: RequestRecord, worst: Mapping[TimeName, float | None]) -> RequestRecord:
    outcome = request.outcome
    if outcome is None or not outcome.censored:
        return request
    known = outcome.first_step_ms
    first = worst["first_step_ms"] if known is None else known
    times = {"ms": worst["ms"], "first_step_ms": first}
    return replace(request, outcome=outcome.model_copy(update=times))
