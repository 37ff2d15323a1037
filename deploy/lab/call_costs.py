"""What recorded requests would take on other hardware: a prediction, never a measurement.

A recording says which calls were made, in which order, what they read and what they wrote. Here
each call is charged what it would cost on a stated pair of models, and the calls are laid along a
clock: those that waited for each other add up; both prompts are read side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from deploy.evaluation.recording import Recording
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import Classify, Generate, Verify, WorkerName, Write
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import Classification, Generation, Usage, Verification

ASSUMPTIONS: Final = (
    "The recorded requests are kept word for word: tokens, scores and decisions are those of the "
    "recorded pair, only their times are replaced. Accuracy is therefore the recorded pair's.",
    "Prefix caches hit where they hit in the recording: on what the same request has read or "
    "written before. All other prompt tokens are read.",
    "A call costs its overhead, one pass that reads what is not cached and gives the first token, "
    "and one pass for each further token. Longer contexts do not make passes slower.",
    "With several requests at once a model has as many live streams as requests are at it at one "
    "moment, on average; between two published numbers of streams a token's time is on the line "
    "through them, below the fewest it is theirs. Reading prompts costs the same under any load.",
    "Where the models share a device, a request waits for its own calls alone, not for those of "
    "the other requests at the other model: with several at once such times are too short.",
    "GPU-hours are those of the GPUs that a policy's models are on, busy or not, at that many "
    "requests at once around the clock.",
    "A judge reads only what is not cached, also where it tells log-probabilities of the prompt: "
    "this project's own workers do so, a vLLM server reads the whole prompt again for them.",
    "The service itself, its network and its queues cost nothing.",
)


ROUNDS: Final = 12
"""Turns in which times and live streams agree within a hundredth, and some more."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


TokenTime: TypeAlias = Annotated[float, Field(gt=0)]
Streams: TypeAlias = Annotated[int, Field(ge=1)]


class WorkerCosts(_Strict):
    """What one model costs, in milliseconds.

    `token_ms` is the time between two tokens of a stream by how many are live; a file may give one
    number, which is for one stream.
    """

    model: str
    call_ms: float = Field(default=0.0, ge=0, description="overhead of every call")
    read_ms: float = Field(ge=0, description="a pass that reads a prompt, whatever its length")
    read_token_ms: float = Field(ge=0, description="more for every token that it reads")
    token_ms: dict[Streams, TokenTime] = Field(
        min_length=1, description="every token after the first, by live streams"
    )
    gpus: float = Field(default=1.0, gt=0, description="that one copy of the model takes")

    @field_validator("token_ms", mode="before")
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        if not isinstance(value, int | float):
            return value
        if not value > 0:
            raise ValueError(f"want milliseconds above 0, not {value:g}")
        return {1: value}

    def token_ms_at(self, streams: float) -> float:
        """Milliseconds a token with so many live streams, which may be an average.

        Raises:
            ConfigError: more streams than there is a figure for.
        """
        known = sorted(self.token_ms.items())
        for (fewer, fast), (more, slow) in pairwise(known):
            if fewer <= streams <= more:
                return fast + (slow - fast) * (streams - fewer) / (more - fewer)
        if streams <= known[0][0]:
            return known[0][1]
        if streams == known[-1][0]:
            return known[-1][1]
        raise ConfigError(
            f"{self.model}: token_ms has figures up to {known[-1][0]} live streams, "
            f"not for {streams:g}; ask for fewer, or add a published figure to the file"
        )

    def at(self, streams: float) -> WorkerCosts:
        """The costs with so many live streams."""
        return self.model_copy(update={"token_ms": {1: self.token_ms_at(streams)}})

    def call(self, usage: Usage) -> float:
        """Milliseconds of one call."""
        new = max(0, usage.prompt - usage.cached)
        reading = self.read_ms + self.read_token_ms * new if new else 0.0
        return self.call_ms + reading + self.token_ms_at(1) * max(0, usage.generated - 1)


class Costs(_Strict):
    """A pair of models on stated hardware, and where its figures come from."""

    name: str
    hardware: str
    sources: tuple[str, ...] = Field(min_length=1, description="where every figure is from")
    assumptions: tuple[str, ...] = ()
    shared_device: bool = Field(
        default=False, description="both models on one device: their calls never overlap"
    )
    gpu_hour: float | None = Field(
        default=None, gt=0, description="price of one GPU for an hour, in any currency"
    )
    small: WorkerCosts
    large: WorkerCosts

    @property
    def fewest(self) -> int:
        """The fewest live streams that the figures are for."""
        return max(min(worker.token_ms) for worker in (self.small, self.large))

    def at(self, small: float, large: float) -> Costs:
        """The costs with so many live streams at each model."""
        return self.model_copy(
            update={"small": self.small.at(small), "large": self.large.at(large)}
        )

    def gpus(self, workers: Collection[WorkerName]) -> float:
        """The GPUs that these models are on."""
        each = [self.of(worker).gpus for worker in workers]
        return max(each, default=0.0) if self.shared_device else sum(each)

    def of(self, worker: WorkerName) -> WorkerCosts:
        return self.small if worker == "small" else self.large


@dataclass(frozen=True, slots=True)
class Predicted:
    """A recorded request under other costs, in milliseconds.

    ms: from the question to the answer's end. small, large, classify: work done for it, which is
    more than `ms` where work overlaps. busy: the same work by the worker that did it, judging
    included.
    """

    ms: float
    small: float = 0.0
    large: float = 0.0
    classify: float = 0.0
    busy: Mapping[WorkerName, float] = field(default_factory=dict)

    @property
    def overlap(self) -> float:
        """Work that cost no time, since other work took as long."""
        return max(0.0, self.small + self.large + self.classify - self.ms)


@dataclass(slots=True)
class _Clock:
    costs: Costs
    now: float = 0.0
    busy: float = 0.0  # until when the shared device is taken
    work: dict[str, float] = field(
        default_factory=lambda: {"small": 0.0, "large": 0.0, "classify": 0.0}
    )
    by_worker: dict[WorkerName, float] = field(default_factory=lambda: {"small": 0.0, "large": 0.0})
    read: dict[WorkerName, float] = field(default_factory=dict)  # when each has read the prompt

    def book(self, action: Generate | Write | Classify | Verify, ms: float) -> None:
        """Put work down to whom it belongs."""
        judging = isinstance(action, Classify | Verify)
        self.work["classify" if judging else action.worker] += ms
        self.by_worker[action.worker] += ms

    def begin(self, worker: WorkerName) -> float:
        """When a call that is made now begins."""
        return max(self.now, self.read.get(worker, 0.0), self.busy)

    def prefill(self, called: Sequence[ActionCompleted]) -> None:
        """Both workers read the prompt at once; one that marks a thought lets the policy begin."""
        reads: list[float] = []
        for one in called:
            assert isinstance(one.action, Generate)
            ms = self.charge(one.action, one.answer)
            self.read[one.action.worker] = self.busy + ms
            if getattr(one.answer, "thinks", False):
                reads.append(self.busy + ms)
            if self.costs.shared_device:
                self.busy += ms
        self.now = min(reads, default=max(self.read.values(), default=0.0))

    def prefilled(self) -> None:
        """The policy's first action is over: it is told of that when all have read the prompt."""
        self.now = max(self.now, *self.read.values(), 0.0)
        self.read = {}

    def charge(self, action: Any, answer: Any) -> float:
        """The cost of a call, booked to whom it belongs; a failed one costs its overhead."""
        worker = self.costs.of(action.worker)
        known = isinstance(answer, Generation | Classification | Verification)
        ms = worker.call(answer.usage if known else Usage())
        self.book(action, ms)
        return ms

    def wait(self, action: Any, answer: Any) -> None:
        """A call that the policy waits for."""
        self.now = self.begin(action.worker) + self.charge(action, answer)
        if self.costs.shared_device:
            self.busy = self.now


def predict(recording: Recording, costs: Costs) -> Predicted:
    """What the recorded request would take."""
    clock = _Clock(costs)
    calls = deque(event for event in recording.events if isinstance(event, ActionCompleted))
    read = []
    while (
        calls and isinstance(calls[0].action, Generate) and not calls[0].action.criteria.max_tokens
    ):
        read.append(calls.popleft())
    clock.prefill(read)
    parameters = recording.request.parameters
    if parameters.get("max_cost") is not None or parameters.get("max_large_tokens") is not None:
        clock.prefilled()  # a policy with a cap begins when all prompts are counted
    for called in calls:
        match called.action, called.answer:
            case (Generate() | Write() | Classify() | Verify()) as action, answer:
                clock.wait(action, answer)
        clock.prefilled()
    clock.prefilled()
    return Predicted(clock.now, **clock.work, busy=clock.by_worker)


def predict_loaded(
    recordings: Sequence[Recording], costs: Costs, streams: int
) -> tuple[list[Predicted], dict[WorkerName, float]]:
    """What recorded requests take with so many at once, and each model's live streams then.

    How many streams a model has depends on how long requests are at it, and that on its streams:
    both are found together, by turns.

    Raises:
        ConfigError: a model would have more live streams than there is a figure for.
    """
    for worker in (costs.small, costs.large):
        worker.token_ms_at(streams)
    live: dict[WorkerName, float] = {"small": streams, "large": streams}
    for turn in range(ROUNDS):
        found = [predict(recording, costs.at(**live)) for recording in recordings]
        total = sum(one.ms for one in found)
        asked = {
            name: min(1.0, sum(one.busy[name] for one in found) / total) * streams if total else 0.0
            for name in live
        }
        settled = all(abs(live[name] - asked[name]) < 0.01 * streams for name in live)
        if settled or turn + 1 == ROUNDS:
            break
        live = {name: (live[name] + asked[name]) / 2 for name in live}
    return found, asked
