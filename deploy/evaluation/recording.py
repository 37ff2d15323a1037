"""A request's recording: what came of it, and the answers of the models by their calls.

A policy does no I/O, so these answers repeat the request with no model (`replayed`). The first line
of a file is the recording without them, with the keys of a service's trace; then comes a line an
answer.
"""

from __future__ import annotations

import json
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from deploy.evaluation.cached_worker import CachedWorker
from deploy.evaluation.calls import (
    REFUSALS,
    Answer,
    AnsweredCall,
    Refusal,
    classification_key,
    generation_key,
    verification_key,
)
from deploy.evaluation.json_lines import VERSION, read_rows
from orchestrator.errors import BatonError, ConfigError
from orchestrator.loop.accumulator import WORKERS
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, Metrics, RequestCompleted, StepCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.state.versions import without_former
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Limits,
    Message,
    Sampling,
    Segment,
    Step,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, Worker

AnyAnswer = TypeVar("AnyAnswer", Classification, Verification)
KIND: Final = "baton_recording"


class CallMissing(BatonError):
    """A policy makes a call that the recording has no answer to."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A request under a policy with `parameters`; `about` says where it is from."""

    question: str
    policy: str
    status: str
    finish_reason: str | None
    answer: str
    steps: tuple[Step, ...]
    metrics: Metrics
    parameters: dict[str, Any]
    messages: tuple[Message, ...]
    sampling: Sampling
    limits: Limits
    speculation: dict[str, str] = field(default_factory=dict)  # by worker, lossy ones marked
    about: dict[str, Any] = field(default_factory=dict)
    calls: tuple[AnsweredCall, ...] = ()

    @classmethod
    def of(
        cls,
        request: Request,
        name: str,
        policy: Policy,
        ended: RequestCompleted,
        workers: Iterable[RecordedWorker],
        speculation: Mapping[str, str] = MappingProxyType({}),
    ) -> Recording:
        """Return the recording of a request that has ended under the policy of a name."""
        return cls(
            question=request.messages[-1].content,
            policy=name,
            status="finished",
            finish_reason=ended.transcript.finish,
            answer=ended.transcript.reply.strip(),
            steps=ended.steps,
            metrics=ended.metrics,
            parameters=policy.model_dump(mode="json"),
            messages=request.messages,
            sampling=request.sampling,
            limits=request.limits,
            speculation={**speculation},
            calls=tuple(call for worker in workers for call in worker.calls()),
        )


_HEAD = TypeAdapter(Recording)


def dumps(recording: Recording) -> str:
    """Write a recording as JSON lines."""
    head = {KIND: VERSION, **_HEAD.dump_python(recording, exclude={"calls"})}
    rows = (head, *(one.row() for one in recording.calls))
    return "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)


def load(path: Path) -> Recording:
    """Read a file.

    Raises:
        ConfigError: it cannot be read, or is no recording.
    """
    return parse(path, *read_rows(path, KIND))


def parse(path: Path, head: dict[str, Any], rows: Iterable[Any]) -> Recording:
    """Return the recording of the lines of a file.

    Raises:
        ConfigError: they are no recording of this version.
    """
    try:
        read = _HEAD.validate_python({**head, "calls": tuple(map(AnsweredCall.of, rows))})
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a recording of this version: {error}") from None
    return replace(read, parameters=without_former(read.parameters))


class RecordedWorker:
    """A `Worker` that notes the answers of another; `failed`: whether a call had none."""

    def __init__(self, name: WorkerName, worker: Worker) -> None:
        self._name, self._worker, self.failed = name, worker, False
        self._answers: list[tuple[Callable[[], str | None], int, Answer]] = []

    def calls(self) -> Iterator[AnsweredCall]:
        """Yield the answered calls, without those that chance answered.

        The keys are made here, since that takes time.
        """
        for key_of, cap, answer in self._answers:
            if (key := key_of()) is not None:
                yield AnsweredCall(self._name, key, cap, answer)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        key_of, cap = partial(generation_key, call, criteria, sampling), criteria.max_tokens
        heard: Delta | Generation = Delta("", ())
        refused: Refusal | None = None
        items = self._worker.generate(call, criteria, sampling, stream=stream)
        try:
            async with aclosing(items):
                async for item in items:
                    heard = _joined(heard, item)
                    yield item
        except REFUSALS as error:
            refused = Refusal.of(error)
            raise
        except BatonError:
            self.failed = True
            raise
        finally:
            answers = (heard,) if refused is None else (heard, refused)
            self._answers.extend((key_of, cap, answer) for answer in answers)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        key_of = partial(classification_key, call, query)
        return await self._noted(key_of, self._worker.classify(call, query))

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        key_of = partial(verification_key, call, segment, sampling, top)
        return await self._noted(key_of, self._worker.verify(call, segment, sampling, top))

    async def _noted(
        self, key_of: Callable[[], str | None], answering: Awaitable[AnyAnswer]
    ) -> AnyAnswer:
        try:
            answer = await answering
        except REFUSALS as error:
            self._answers.append((key_of, 0, Refusal.of(error)))
            raise
        except BatonError:
            self.failed = True
            raise
        self._answers.append((key_of, 0, answer))
        return answer


def _joined(heard: Delta | Generation, item: Delta | Generation) -> Delta | Generation:
    """Return what a stream has given, after one more item."""
    if isinstance(heard, Generation) or isinstance(item, Generation):
        return item
    tokens, logprobs = heard.tokens + item.tokens, heard.logprobs + item.logprobs
    return Delta(heard.text + item.text, tokens, logprobs)


class NoModel:
    """The `Worker` behind a replay: whatever reaches it was not recorded."""

    def __init__(self, name: WorkerName) -> None:
        self._name = name

    def generate(
        self, call: Call, *given: Any, **more: Any
    ) -> AsyncGenerator[Delta | Generation, None]:
        raise self._missing("generate", call)

    async def classify(self, call: Call, *given: Any) -> Classification:
        raise self._missing("classify", call)

    async def verify(self, call: Call, *given: Any) -> Verification:
        raise self._missing("verify", call)

    def _missing(self, what: str, call: Call) -> CallMissing:
        end = call.transcript.chain.text()[-40:]
        return CallMissing(f"the recording has no answer to {what} ({self._name}) after {end!r}")


def replayed(recording: Recording, policy: Policy) -> AsyncGenerator[Event, None]:
    """Run a policy on the recorded answers alone.

    Raises:
        CallMissing: it makes a call that has no answer.
    """
    workers = {name: CachedWorker(NoModel(name), name, recording.calls) for name in WORKERS}
    request = Request("replay", recording.messages, recording.sampling, recording.limits)
    return solve(policy, request, workers)


async def compare(
    recording: Recording, policy: Policy
) -> tuple[tuple[Step, ...], BatonError | None, bool]:
    """Return the steps of a replay, what differs first, and whether all calls had an answer."""
    steps: tuple[Step, ...] = ()
    missing: CallMissing | None = None
    try:
        async for event in replayed(recording, policy):
            if isinstance(event, StepCompleted):
                steps += (event.step,)
            elif isinstance(event, RequestCompleted):
                steps = event.steps
    except CallMissing as error:
        missing = error
    recorded = recording.steps if missing is None else recording.steps[: len(steps)]
    for number, (theirs, ours) in enumerate(zip_longest(recorded, steps), 1):
        if _brief(theirs) != _brief(ours):
            difference = f"step {number}: recorded {_brief(theirs)}, now {_brief(ours)}"
            return steps, BatonError(difference), missing is None
    return steps, missing, missing is None


def _brief(step: Step | None) -> str:
    """Return what a policy decided."""
    if step is None:
        return "nothing"
    score = "" if step.score is None else f", scored {step.score:g}"
    fate = "accepted" if step.accepted else "rejected"
    return f"{step.author}'s {step.text!r} ({fate}{score})"
