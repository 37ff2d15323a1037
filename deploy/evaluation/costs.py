"""What recorded requests would take on other hardware: a prediction, never a measurement.

A recording says which calls were made, in which order, what they read and what they wrote. Here
each call is charged what it would cost on a stated pair of models, and the calls are laid along a
clock: those that waited for each other add up, those that ran side by side overlap, so that a
policy which drafts ahead is charged its critical path and not the sum of its work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from deploy.evaluation.recording import Recording
from orchestrator.loop.actions import (
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Start,
    Verify,
    WorkerName,
    Write,
)
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import Classification, Generation, Usage, Verification

ASSUMPTIONS: Final = (
    "The recorded requests are kept word for word: tokens, scores and decisions are those of the "
    "recorded pair, only their times are replaced. Accuracy is therefore the recorded pair's.",
    "Prefix caches hit where they hit in the recording: on what the same request has read or "
    "written before. All other prompt tokens are read.",
    "A call costs its overhead, one pass that reads what is not cached and gives the first token, "
    "and one pass for each further token. Longer contexts do not make passes slower.",
    "Calls that the policy started as jobs run side by side; calls of one worker are batched at no "
    "extra cost, unless the models share a device, where one call waits for the other.",
    "Jobs are taken to end in the order in which they ended in the recording. What a cancelled job "
    "did until then delays nothing else, unless the models share a device.",
    "A judge reads only what is not cached, also where it tells log-probabilities of the prompt: "
    "this project's own workers do so, a vLLM server reads the whole prompt again for them.",
    "The service itself, its network and its queues cost nothing.",
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerCosts(_Strict):
    """What one model costs at one stream, in milliseconds."""

    model: str
    call_ms: float = Field(default=0.0, ge=0, description="overhead of every call")
    read_ms: float = Field(ge=0, description="a pass that reads a prompt, whatever its length")
    read_token_ms: float = Field(ge=0, description="more for every token that it reads")
    token_ms: float = Field(gt=0, description="every token after the first")

    def call(self, usage: Usage) -> float:
        """Milliseconds of one call."""
        new = max(0, usage.prompt - usage.cached)
        reading = self.read_ms + self.read_token_ms * new if new else 0.0
        return self.call_ms + reading + self.token_ms * max(0, usage.generated - 1)


class Costs(_Strict):
    """A pair of models on stated hardware, and where its figures come from."""

    name: str
    hardware: str
    sources: tuple[str, ...] = Field(min_length=1, description="where every figure is from")
    assumptions: tuple[str, ...] = ()
    shared_device: bool = Field(
        default=False, description="both models on one device: their calls never overlap"
    )
    small: WorkerCosts
    large: WorkerCosts

    def of(self, worker: WorkerName) -> WorkerCosts:
        return self.small if worker == "small" else self.large


@dataclass(frozen=True, slots=True)
class Predicted:
    """A recorded request under other costs, in milliseconds.

    ms: from the question to the answer's end. small, large, classify: work done for it (jobs that
    were cancelled included), which is more than `ms` where work overlaps.
    """

    ms: float
    small: float = 0.0
    large: float = 0.0
    classify: float = 0.0

    @property
    def overlap(self) -> float:
        """Work that cost no time, since other work took as long."""
        return max(0.0, self.small + self.large + self.classify - self.ms)


@dataclass(slots=True)
class _StartedCall:
    """A started call: what it is, and when it began."""

    action: Generate | Classify | Verify
    began: float


@dataclass(slots=True)
class _Clock:
    costs: Costs
    now: float = 0.0
    busy: float = 0.0  # until when the shared device is taken
    work: dict[str, float] = field(
        default_factory=lambda: {"small": 0.0, "large": 0.0, "classify": 0.0}
    )
    jobs: dict[Job, _StartedCall] = field(default_factory=dict)

    def begin(self) -> float:
        """When a call that is made now begins."""
        return max(self.now, self.busy) if self.costs.shared_device else self.now

    def charge(self, action: Any, answer: Any) -> float:
        """The cost of a call, booked to whom it belongs; a failed one costs its overhead."""
        worker = self.costs.of(action.worker)
        known = isinstance(answer, Generation | Classification | Verification)
        ms = worker.call(answer.usage if known else Usage())
        judging = isinstance(action, Classify | Verify)
        self.work["classify" if judging else action.worker] += ms
        return ms

    def wait(self, action: Any, answer: Any) -> None:
        """A call that the policy waits for."""
        self.now = self.begin() + self.charge(action, answer)
        self.busy = max(self.busy, self.now)

    def first(self, job: Job, answer: Any) -> None:
        running = self.jobs.pop(job)
        began = max(running.began, self.busy) if self.costs.shared_device else running.began
        end = began + self.charge(running.action, answer)
        self.busy = max(self.busy, end)
        self.now = max(self.now, end)

    def cancel(self, job: Job, usage: Usage) -> None:
        """What a job did before it was stopped; it can have done no more than time allowed."""
        running = self.jobs.pop(job, None)
        if running is None:
            return
        ms = min(self.costs.of(running.action.worker).call(usage), self.now - running.began)
        judging = isinstance(running.action, Classify | Verify)
        self.work["classify" if judging else running.action.worker] += ms
        if self.costs.shared_device:
            self.busy = max(self.busy, running.began) + ms
            self.now = max(self.now, self.busy)


def predict(recording: Recording, costs: Costs) -> Predicted:
    """What the recorded request would take."""
    clock = _Clock(costs)
    calls = deque(event for event in recording.events if isinstance(event, ActionCompleted))
    read = []  # before the policy starts, both workers read the prompt at once
    while (
        calls and isinstance(calls[0].action, Generate) and not calls[0].action.criteria.max_tokens
    ):
        called = calls.popleft()
        read.append(clock.charge(called.action, called.answer))
    clock.now = sum(read) if costs.shared_device else max(read, default=0.0)
    for called in calls:
        match called.action, called.answer:
            case (Generate() | Write() | Classify() | Verify()) as action, answer:
                clock.wait(action, answer)
            case Start(Generate() | Classify() | Verify() as action), Job() as job:
                clock.jobs[job] = _StartedCall(action, clock.begin())
            case First(), (Job() as job, answer) if job in clock.jobs:
                clock.first(job, answer)
            case Cancel(job), Usage() as usage:
                clock.cancel(job, usage)
    return Predicted(clock.now, **clock.work)
