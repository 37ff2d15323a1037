"""A request's recording: its events as JSON lines, written and read.

The first line is the request; each further one a finished action, a finished step or the end. Every
action has a whole transcript. It is written as the difference to the one before, and a segment in
full only once, so the size of a recording is linear in the text. Text events are not written, for
the segments hold their text.

    {"baton": 1, "request": "r1", "policy": "specreason", ...}
    {"$": "Called", "action": {"$": "Generate", "worker": "small", "trace": {...}, ...}, ...}

The names in the file are those of version 1 of the format. `_KINDS` and `_FIELDS` map them to
today's classes and fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.errors import BatonError, ConfigError, InvalidRequest
from orchestrator.loop import actions
from orchestrator.loop.actions import Classify, Generate, Verify, Write
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.types import (
    CallFormat,
    Classification,
    Constraint,
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    Step,
    StopCriteria,
    TokenPrices,
    ToolCall,
    Transcript,
    Usage,
    Verification,
)

VERSION = 1


class RecordingError(BatonError):
    """A recording that cannot be read."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The request itself: the first line of a recording."""

    request_id: str
    policy: str
    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the policy, as JSON
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    speculation: Mapping[str, str] = field(default_factory=dict)  # by worker, lossy ones marked


@dataclass(frozen=True, slots=True)
class Recording:
    """A request and its events except text; event i is in line i + 2 of the file."""

    request: RecordedRequest
    events: tuple[Event, ...]

    @property
    def ended(self) -> RequestCompleted | None:
        """Return its last event, or None if the request did not complete."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RequestCompleted) else None

    def calls(self) -> Iterator[ActionCompleted]:
        """Yield the calls of workers, with their answers."""
        for event in self.events:
            match event:
                case ActionCompleted(Generate() | Write() | Classify() | Verify()):
                    yield event


def dumps(recording: Recording) -> str:
    """Write a recording as JSON lines."""
    encoder = _Encoder()
    head = {"baton": VERSION, **encoder.plain(recording.request)}
    del head["$"]
    events = [event for event in recording.events if not isinstance(event, TextDelta)]
    # ASCII: a text may have lone surrogates, which UTF-8 cannot encode, and line separators.
    lines = (json.dumps(line, separators=(",", ":")) for line in (head, *encoder.plain(events)))
    return "".join(f"{line}\n" for line in lines)


def loads(text: str) -> Recording:
    """Read JSON lines.

    Raises:
        RecordingError: not a recording, or of another version; names the line.
    """
    decoder = _Decoder()
    request: Any = None
    events: list[Event] = []
    if not text.strip():
        raise RecordingError("empty; a recording has one JSON object a line, the request first")
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        try:
            data = json.loads(line)
            if request is None:
                if data.pop("baton", None) != VERSION:
                    raise ValueError(f"expected a recording of version {VERSION} (the key `baton`)")
                request = decoder.value({"$": "Asked", **data})
            else:
                event = decoder.value(data)
                if not isinstance(event, ActionCompleted | StepCompleted | RequestCompleted):
                    raise ValueError("expected an event: Called, Stepped or Ended")
                events.append(event)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise RecordingError(f"line {number}: cannot be read: {error}") from error
    return Recording(request, tuple(events))


def load(path: Path) -> Recording:
    """Read a file.

    Raises:
        ConfigError: it cannot be read, or is no recording; names file and line.
    """
    try:
        return loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except RecordingError as error:
        raise ConfigError(f"{path}: {error}") from None


_KINDS: dict[str, Any] = {
    "Asked": RecordedRequest,
    "Trace": Transcript,
    "Span": StopCriteria,
    "Called": ActionCompleted,
    "Stepped": StepCompleted,
    "Ended": RequestCompleted,
} | {
    kind.__name__: kind
    for kind in (
        Message, ToolCall, CallFormat, Constraint, Sampling, Limits, TokenPrices, Segment, Step,
        Usage, Generation, Classification, Verification, Generate, Write, actions.Advise, Classify,
        Verify, actions.Accept, actions.Reject, actions.Close, Metrics,
    )
}  # fmt: skip
"""Classes by their name in the file."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {"trace": "transcript", "span": "criteria", "surprise": "nll", "request": "request_id"}
"""Fields by their name in the file; a field that is missing here has the same name there."""
_FORMER_FIELDS = {"Limits": {"budget"}, "Generate": {"temperature"}}
"""Removed fields by their kind's name in the file; they are read and ignored."""
_FIELD_NAMES = {field: name for name, field in _FIELDS.items()}
_UNWRITTEN = "provenance"
"""A field that is not recorded: no replay needs to know who drafted a token."""
_PHASES = ("thought", "answer")
_REFUSAL = ("param", "code")
"""The fields of an `InvalidRequest`."""


class _Encoder:
    """Encode objects as plain data, without fields at their default."""

    def __init__(self) -> None:
        self._seen: dict[Segment, int] = {}
        self._last = Transcript(())

    def plain(self, value: Any) -> Any:
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, Transcript):
            return self._trace(value)
        if isinstance(value, Segment):
            if (number := self._seen.get(value)) is not None:
                return {"$": number}
            self._seen[value] = len(self._seen)
        if (name := _NAMES.get(type(value))) is not None:
            return {"$": name} | self._fields(value, _UNWRITTEN)
        if isinstance(value, BatonError):
            more = _REFUSAL if isinstance(value, InvalidRequest) else ()
            extra = {name: getattr(value, name) for name in more}
            return {"$error": type(value).__name__, "message": str(value), **extra}
        if isinstance(value, tuple | list):
            return [self.plain(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.plain(item) for key, item in value.items()}
        raise TypeError(f"a recording cannot hold a {type(value).__name__}")

    def _fields(self, value: Any, *without: str) -> dict[str, Any]:
        return {
            _FIELD_NAMES.get(spec.name, spec.name): self.plain(item)
            for spec in fields(value)
            if spec.name not in without and not _is_default(spec, item := getattr(value, spec.name))
        }

    def _trace(self, transcript: Transcript) -> dict[str, Any]:
        """Encode flags, messages if they changed, and per phase the segments kept, then added."""
        last, self._last = self._last, transcript
        data: dict[str, Any] = {"$": "Trace"}
        if transcript.messages != last.messages:
            data["messages"] = self.plain(transcript.messages)
        for phase in _PHASES:
            old, new = getattr(last, phase), getattr(transcript, phase)
            keep = new.shared(old)
            if keep < len(old) or keep < len(new):
                data[phase] = [keep, *(self.plain(segment) for segment in new[keep:])]
        return data | self._fields(transcript, "messages", *_PHASES)


class _Decoder:
    """Decode the plain data of `_Encoder`."""

    def __init__(self) -> None:
        self._seen: list[Segment] = []
        self._last = Transcript(())

    def value(self, data: Any) -> Any:
        if isinstance(data, list):
            return tuple(self.value(item) for item in data)
        if not isinstance(data, dict):
            return data
        if "$error" in data:
            kind = getattr(errors, data["$error"])
            if not issubclass(kind, BatonError):
                raise ValueError(f"{kind.__name__} is no error of Baton's")
            return kind(data["message"], **{name: data[name] for name in _REFUSAL if name in data})
        name = data.get("$")
        if isinstance(name, int):
            return self._seen[name]
        if name == "Trace":
            return self._trace(data)
        if name is None:
            return data  # a mapping of plain values
        if name not in _KINDS:
            raise ValueError(f"this version has no {name!r}")
        without = {"$"} | _FORMER_FIELDS.get(name, set())
        named = {
            _FIELDS.get(str(key), str(key)): self.value(item)
            for key, item in data.items()
            if key not in without
        }
        value = _KINDS[name](**named)
        if isinstance(value, Segment):
            self._seen.append(value)
        return value

    def _trace(self, data: dict[str, Any]) -> Transcript:
        named = {key: item for key, item in data.items() if key not in ("$", "messages", *_PHASES)}
        messages = self.value(data["messages"]) if "messages" in data else self._last.messages
        for phase in _PHASES:
            segments = getattr(self._last, phase)
            if phase in data:
                keep, *added = data[phase]
                segments = segments.first(keep)
                for item in added:
                    segments = segments.plus(self.value(item))
            named[phase] = segments
        self._last = Transcript(messages, **named)
        return self._last


def _is_default(spec: Any, value: Any) -> bool:
    if spec.default is not MISSING:
        return bool(value == spec.default and type(value) is type(spec.default))
    return spec.default_factory is not MISSING and bool(value == spec.default_factory())
