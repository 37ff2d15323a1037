"""A request on paper: events <-> JSON lines, and replay with no model and no clock.

The first line is the request; each further one a finished action, a finished step or the end. Every
action carries its whole transcript, so transcripts are written as what changed since the one
before, and a segment in full only once: a recording grows with the text, not with its square. Text
events are not written, for the segments hold their text.

    {"baton": 1, "request": "r1", "policy": "specreason", ...}
    {"$": "Called", "action": {"$": "Generate", "worker": "small", "trace": {...}, ...}, ...}
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from deploy.evaluation.recorded_answers import Answers
from orchestrator import errors, types
from orchestrator.errors import BatonError, InvalidRequest
from orchestrator.loop import actions, events
from orchestrator.loop.actions import (
    Action,
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Start,
    Verify,
    Write,
)
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.loop.policy_runner import PolicyRunner
from orchestrator.types import Generation, Limits, Message, Sampling, Segment, Transcript, Usage

VERSION = 1


class RecordingError(BatonError):
    """A recording that cannot be read."""


class ReplayMismatch(BatonError):
    """The policy does not ask what the recording answers; `line` is the first that differs."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class AnswerMissing(ReplayMismatch):
    """The policy asks something that the recorded one never asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of Baton: the first line of a recording."""

    request: str
    policy: str
    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the policy, as JSON
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    speculation: Mapping[str, str] = field(default_factory=dict)  # by worker, lossy ones marked


@dataclass(frozen=True, slots=True)
class Recording:
    """A request and its events without their TextDelta; `lines[i]` is the file's line of event
    i."""

    asked: Asked
    events: tuple[Event, ...]
    lines: tuple[int, ...] = ()

    @property
    def ended(self) -> RequestCompleted | None:
        """Its last event, if it got that far."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RequestCompleted) else None


class Recorder:
    """Turns one request's events into lines, in order."""

    def __init__(self, asked: Asked) -> None:
        self._codec = _Encoder()
        head = {"baton": VERSION, **self._codec.plain(asked)}
        del head["$"]
        self.head = _dumps(head)

    def line(self, event: Event) -> str | None:
        """The event's line, without its line end; None for TextDelta, which is not written."""
        return None if isinstance(event, TextDelta) else _dumps(self._codec.plain(event))


def dumps(recording: Recording) -> str:
    """The recording as JSON lines."""
    recorder = Recorder(recording.asked)
    lines = [recorder.head, *(recorder.line(event) for event in recording.events)]
    return "".join(f"{line}\n" for line in lines if line is not None)


def loads(text: str) -> Recording:
    """Read JSON lines.

    Raises:
        RecordingError: not a recording, or of another version; names the line.
    """
    decoder = _Decoder()
    asked: Any = None
    found: list[Any] = []
    numbers: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if asked is None:
                if data.pop("baton", None) != VERSION:
                    raise ValueError(f"not a recording of version {VERSION}")
                asked = decoder.value({"$": "Asked", **data})
            else:
                found.append(decoder.value(data))
                numbers.append(number)
                if not isinstance(found[-1], ActionCompleted | StepCompleted | RequestCompleted):
                    raise ValueError("not an event")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise RecordingError(f"line {number}: cannot be read: {error}") from error
    if asked is None:
        raise RecordingError("an empty recording")
    return Recording(asked, tuple(found), tuple(numbers))


def replay(recording: Recording, policy: Policy) -> Iterator[Event]:
    """Drive `policy` through the recording: the same events, one TextDelta per accepted segment.

    Raises:
        ReplayMismatch: the policy asks something else, or more, or less than was recorded.
    """
    tape = deque(
        (event, line)
        for event, line in zip(recording.events, _numbers(recording), strict=True)
        if isinstance(event, ActionCompleted)
    )

    def next_answer(action: Action[Any]) -> ActionCompleted:
        if not tape:
            raise ReplayMismatch(f"the recording ends where the policy asks {_brief(action)}")
        called, line = tape.popleft()
        if called.action != action:
            told = f"recorded {_brief(called.action)}, the policy asks {_brief(action)}"
            raise ReplayMismatch(told, line)
        return called

    yield from _drive(recording, policy, next_answer)
    if tape:
        called, line = tape[0]
        raise ReplayMismatch(f"recorded {_brief(called.action)}, the policy has ended", line)


def replayable(recording: Recording, policy: Policy) -> Iterator[Event]:
    """Drive another policy (another threshold, say) as far as the recording has its answers.

    Answers are found by their question, whatever the order (answers.py).

    Raises:
        AnswerMissing: at the first question that was never answered.
    """
    answers = Answers(recording.events)
    asked: dict[Job, Action[Any]] = {}

    def next_answer(action: Action[Any]) -> ActionCompleted:
        match action:
            case Generate() | Write() | Classify() | Verify():
                if (called := answers.take(action)) is None:
                    raise AnswerMissing(f"the recording has no answer to {_brief(action)}")
                return called
            case Start(inner):
                job = Job(len(asked))
                asked[job] = inner
                return ActionCompleted(action, job, 0.0)
            case First(jobs):
                for job in jobs:
                    if (called := answers.take(asked[job])) is not None:
                        return ActionCompleted(action, (job, called.answer), 0.0)
                raise AnswerMissing(f"the recording has no answer to {_brief(action)}")
            case Cancel():
                return ActionCompleted(action, Usage(), 0.0)
        return ActionCompleted(action, None, 0.0)

    yield from _drive(recording, policy, next_answer)


def _drive(
    recording: Recording, policy: Policy, next_answer: Callable[[Action[Any]], ActionCompleted]
) -> Iterator[Event]:
    dialogue = PolicyRunner(policy, recording.asked.messages, recording.asked.limits)
    open_jobs: dict[Job, None] = {}
    try:
        for question in dialogue.preflight():
            yield dialogue.noted(next_answer(question))
        while (action := dialogue.ask()) is not None:
            called = next_answer(action)
            match action, called.answer:
                case Write(worker), Generation(segment) if segment.text:
                    yield TextDelta(worker, dialogue.phase, segment.text)
                case Start(), Job() as job:
                    open_jobs[job] = None
                case First(), (job, _):
                    open_jobs.pop(job, None)
                case Cancel(job), _:
                    open_jobs.pop(job, None)
            yield from dialogue.told(called)
        for job in open_jobs:
            yield dialogue.noted(next_answer(Cancel(job)))
        ended = recording.ended
        yield dialogue.end(ended.metrics.ms["total"] if ended else 0.0)
    finally:
        dialogue.close()


def _numbers(recording: Recording) -> tuple[int, ...]:
    return recording.lines or tuple(range(2, len(recording.events) + 2))


def _brief(action: Action[Any]) -> str:
    """An action in a few words, for messages."""
    parts = []
    for spec in fields(action):  # type: ignore[arg-type]
        value = getattr(action, spec.name)
        if isinstance(value, Transcript):
            phase = "the answer" if value.closed else "the thought"
            value = f"after {len(value.thought) + len(value.answer)} segments, in {phase}"
        elif isinstance(value, Segment):
            value = f"{value.author}: {value.text[:40]!r}"
        elif isinstance(value, Action):
            value = _brief(value)
        elif spec.name in ("turns", "labels"):
            continue
        parts.append(f"{spec.name}={value}")
    return f"{type(action).__name__}({', '.join(parts)})"


# --- the codec -----------------------------------------------------------------------------------

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for module in (types, actions, events)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__ and kind is not Action
} | {"Asked": Asked}
_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BatonError)
}
_PHASES = ("thought", "answer")
# The names of version 1 of the format, where the classes and fields have others.
_KIND_NAMES = {
    "Transcript": "Trace",
    "StopCriteria": "Span",
    "TextDelta": "Text",
    "ActionCompleted": "Called",
    "StepCompleted": "Stepped",
    "RequestCompleted": "Ended",
}
_FIELD_NAMES = {"transcript": "trace", "criteria": "span", "nll": "surprise"}
_KINDS_READ = {written: kind for kind, written in _KIND_NAMES.items()}
_FIELDS_READ = {written: name for name, written in _FIELD_NAMES.items()}


class _Encoder:
    """Objects -> plain data. Fields at their default are left out."""

    def __init__(self) -> None:
        self._seen: dict[Segment, int] = {}
        self._last = Transcript(())

    def plain(self, value: Any) -> Any:
        if isinstance(value, Transcript):
            return self._trace(value)
        if isinstance(value, Segment):
            if (number := self._seen.get(value)) is not None:
                return {"$": number}
            self._seen[value] = len(self._seen)
        if type(value).__name__ in _KINDS:
            kind = type(value).__name__
            return {"$": _KIND_NAMES.get(kind, kind)} | self._fields(value)
        if isinstance(value, BatonError):
            extra = (
                {"param": value.param, "code": value.code}.items()
                if isinstance(value, InvalidRequest)
                else ()
            )
            return {"$error": type(value).__name__, "message": str(value)} | dict(extra)
        if isinstance(value, tuple | list):
            return [self.plain(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.plain(item) for key, item in value.items()}
        if value is None or isinstance(value, str | int | float):
            return value
        raise TypeError(f"a recording cannot hold a {type(value).__name__}")

    def _fields(self, value: Any) -> dict[str, Any]:
        named = ((spec, getattr(value, spec.name)) for spec in fields(value))
        return {
            _FIELD_NAMES.get(spec.name, spec.name): self.plain(item)
            for spec, item in named
            if not _default(spec, item)
        }

    def _trace(self, transcript: Transcript) -> dict[str, Any]:
        """Flags, messages where they changed, and per phase: segments kept, then those added."""
        last, self._last = self._last, transcript
        data: dict[str, Any] = {"$": "Trace"}
        if transcript.messages != last.messages:
            data["messages"] = self.plain(transcript.messages)
        for phase in _PHASES:
            old, new = getattr(last, phase), getattr(transcript, phase)
            keep = 0
            while keep < min(len(old), len(new)) and old[keep] == new[keep]:
                keep += 1
            if keep < len(old) or keep < len(new):
                data[phase] = [keep, *(self.plain(segment) for segment in new[keep:])]
        flags = [spec for spec in fields(transcript) if spec.name not in ("messages", *_PHASES)]
        values = ((spec, getattr(transcript, spec.name)) for spec in flags)
        return data | {spec.name: value for spec, value in values if not _default(spec, value)}


class _Decoder:
    """Plain data -> objects; the mirror of `_Encoder`."""

    def __init__(self) -> None:
        self._seen: list[Segment] = []
        self._last = Transcript(())

    def value(self, data: Any) -> Any:
        if isinstance(data, list):
            return tuple(self.value(item) for item in data)
        if not isinstance(data, dict):
            return data
        if "$error" in data:
            return self._error(data)
        name = data.get("$")
        if isinstance(name, int):
            return self._seen[name]
        if name == "Trace":
            return self._trace(data)
        if name is None:
            return data  # a mapping of plain values
        named = {
            _FIELDS_READ.get(str(key), str(key)): self.value(item)
            for key, item in data.items()
            if key != "$"
        }
        made = _KINDS[_KINDS_READ.get(str(name), str(name))](**named)
        if isinstance(made, Segment):
            self._seen.append(made)
        return made

    def _trace(self, data: dict[str, Any]) -> Transcript:
        named = {key: item for key, item in data.items() if key not in ("$", "messages", *_PHASES)}
        messages = self._last.messages
        if "messages" in data:
            messages = self.value(data["messages"])
        for phase in _PHASES:
            kept: tuple[Segment, ...] = getattr(self._last, phase)
            if phase in data:
                keep, *added = data[phase]
                kept = kept[:keep] + tuple(self.value(item) for item in added)
            named[phase] = kept
        self._last = Transcript(messages, **named)
        return self._last

    def _error(self, data: dict[str, Any]) -> BatonError:
        kind = _ERRORS[data["$error"]]
        if issubclass(kind, InvalidRequest):
            return kind(data["message"], param=data["param"], code=data["code"])
        return kind(data["message"])


def _default(spec: Any, value: Any) -> bool:
    if spec.default is not MISSING:
        return bool(value == spec.default and type(value) is type(spec.default))
    return spec.default_factory is not MISSING and bool(value == spec.default_factory())


def _dumps(data: Any) -> str:
    # ASCII, because a text may hold line separators and lone surrogates that no file would take.
    return json.dumps(data, separators=(",", ":"))
