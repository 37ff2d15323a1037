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
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.errors import BatonError, ConfigError, InvalidRequest
from orchestrator.loop.actions import (
    Accept,
    Advise,
    Classify,
    Close,
    Generate,
    Reject,
    Verify,
    WorkerName,
    Write,
)
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
    Segments,
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

    def lossy(self, *workers: WorkerName) -> str | None:
        """Return the first lossy method of these workers, if any."""
        methods = (self.speculation.get(name, "") for name in workers)
        return next((method for method in methods if "lossy" in method), None)


@dataclass(frozen=True, slots=True)
class Recording:
    """A request and its events except text; event i is in line `lines[i]` (from 1) of the file."""

    request: RecordedRequest
    events: tuple[Event, ...]
    lines: tuple[int, ...] = ()

    @property
    def ended(self) -> RequestCompleted | None:
        """Return its last event, or None if the request did not complete."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RequestCompleted) else None


class Recorder:
    """Turns one request's events into lines, in order."""

    def __init__(self, request: RecordedRequest) -> None:
        self._codec = _Encoder()
        head = {"baton": VERSION, **self._codec.plain(request)}
        del head["$"]
        self.head = _dumps(head)

    def line(self, event: Event) -> str | None:
        """Return the event's line, without its line end; None for TextDelta."""
        return None if isinstance(event, TextDelta) else _dumps(self._codec.plain(event))


def dumps(recording: Recording) -> str:
    """Write a recording as JSON lines."""
    recorder = Recorder(recording.request)
    lines = [recorder.head, *(recorder.line(event) for event in recording.events)]
    return "".join(f"{line}\n" for line in lines if line is not None)


def loads(text: str) -> Recording:
    """Read JSON lines.

    Raises:
        RecordingError: not a recording, or of another version; names the line.
    """
    decoder = _Decoder()
    request: Any = None
    events: list[Any] = []
    numbers: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
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
                numbers.append(number)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise RecordingError(f"line {number}: cannot be read: {error}") from error
    if request is None:
        raise RecordingError("empty; a recording has one JSON object a line, the request first")
    return Recording(request, tuple(events), tuple(numbers))


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


# --- the codec -----------------------------------------------------------------------------------

_KINDS: dict[str, Any] = {
    "Asked": RecordedRequest,
    "Message": Message,
    "ToolCall": ToolCall,
    "CallFormat": CallFormat,
    "Constraint": Constraint,
    "Sampling": Sampling,
    "Limits": Limits,
    "TokenPrices": TokenPrices,
    "Trace": Transcript,
    "Span": StopCriteria,
    "Segment": Segment,
    "Step": Step,
    "Usage": Usage,
    "Generation": Generation,
    "Classification": Classification,
    "Verification": Verification,
    "Generate": Generate,
    "Write": Write,
    "Advise": Advise,
    "Classify": Classify,
    "Verify": Verify,
    "Accept": Accept,
    "Reject": Reject,
    "Close": Close,
    "Called": ActionCompleted,
    "Stepped": StepCompleted,
    "Ended": RequestCompleted,
    "Metrics": Metrics,
}
"""Classes by their name in the file."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {"trace": "transcript", "span": "criteria", "surprise": "nll", "request": "request_id"}
"""Fields by their name in the file; a field that is missing here has the same name there."""
_FORMER_FIELDS = {"Limits": {"budget"}}
"""Removed fields by their kind's name in the file; they are read and ignored."""
_FIELD_NAMES = {field: name for name, field in _FIELDS.items()}
_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BatonError)
}
_UNWRITTEN = "provenance"
"""A field that is not recorded: no replay needs to know where a token came from."""
_PHASES = ("thought", "answer")


class _Encoder:
    """Encode objects as plain data, without fields at their default."""

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
        if (name := _NAMES.get(type(value))) is not None:
            return {"$": name} | self._fields(value)
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
        named = (
            (spec, getattr(value, spec.name)) for spec in fields(value) if spec.name != _UNWRITTEN
        )
        return {
            _FIELD_NAMES.get(spec.name, spec.name): self.plain(item)
            for spec, item in named
            if not _is_default(spec, item)
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
        flags = [spec for spec in fields(transcript) if spec.name not in ("messages", *_PHASES)]
        values = ((spec, getattr(transcript, spec.name)) for spec in flags)
        return data | {spec.name: value for spec, value in values if not _is_default(spec, value)}


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
            return self._error(data)
        name = data.get("$")
        if isinstance(name, int):
            return self._seen[name]
        if name == "Trace":
            return self._trace(data)
        if name is None:
            return data  # a mapping of plain values
        named = {
            _FIELDS.get(str(key), str(key)): self.value(item)
            for key, item in data.items()
            if key != "$" and key not in _FORMER_FIELDS.get(name, ())
        }
        if name not in _KINDS:
            raise ValueError(f"this version has no {name!r}")
        value = _KINDS[name](**named)
        if isinstance(value, Segment):
            self._seen.append(value)
        return value

    def _trace(self, data: dict[str, Any]) -> Transcript:
        named = {key: item for key, item in data.items() if key not in ("$", "messages", *_PHASES)}
        messages = self._last.messages
        if "messages" in data:
            messages = self.value(data["messages"])
        for phase in _PHASES:
            kept: Segments = getattr(self._last, phase)
            if phase in data:
                keep, *added = data[phase]
                kept = kept.first(keep)
                for item in added:
                    kept = kept.plus(self.value(item))
            named[phase] = kept
        self._last = Transcript(messages, **named)
        return self._last

    def _error(self, data: dict[str, Any]) -> BatonError:
        kind = _ERRORS[data["$error"]]
        if issubclass(kind, InvalidRequest):
            return kind(data["message"], param=data["param"], code=data["code"])
        return kind(data["message"])


def _is_default(spec: Any, value: Any) -> bool:
    if spec.default is not MISSING:
        return bool(value == spec.default and type(value) is type(spec.default))
    return spec.default_factory is not MISSING and bool(value == spec.default_factory())


def _dumps(data: Any) -> str:
    # ASCII: a text may have lone surrogates, which UTF-8 cannot encode, and line separators.
    return json.dumps(data, separators=(",", ":"))
