"""The calls of workers with their answers: a key for each call, and a row of a file.

The answer to a call with greedy sampling (or a seed) depends only on its prefix and its stop
criteria, turns or segment, and these make its key. Fields at their default are not in it, so a new
field changes no key. The key ignores that a batch may change the last bit of a logit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from orchestrator.errors import BatonError, ContextLengthExceeded, Unsupported
from orchestrator.types import (
    ENDED,
    Classification,
    Constraint,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from orchestrator.worker import Call, Delta

REFUSALS: Final = (ContextLengthExceeded, Unsupported)
"""The errors that are the answer to a call: its worker would give it again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error that a worker gave as its answer, one of `REFUSALS`."""

    name: Literal["ContextLengthExceeded", "Unsupported"]
    message: str

    @classmethod
    def of(cls, error: ContextLengthExceeded | Unsupported) -> Refusal:
        full = isinstance(error, ContextLengthExceeded)
        return cls("ContextLengthExceeded" if full else "Unsupported", str(error))

    def error(self) -> BatonError:
        kinds = {kind.__name__: kind for kind in REFUSALS}
        return kinds[self.name](self.message)


Answer = Generation | Classification | Verification | Delta | Refusal
"""A Delta is the text so far of a generation that its reader broke off."""
KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (Generation, Classification, Verification, Delta, Refusal)
}


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call of a worker by its key, and its answer; `cap` is that on a generation's tokens."""

    worker: str
    key: str
    cap: int
    answer: Answer

    def serves(self, cap: int) -> bool:
        """Return whether the call has this answer at another cap, as one that ended before it."""
        answer = self.answer
        if not isinstance(answer, Generation) or answer.segment.finish == "length":
            return cap == self.cap
        return cap == self.cap or cap >= max(answer.usage.generated, 1)

    def row(self) -> list[Any]:
        """Return it as JSON; `of` reads it."""
        kind = type(self.answer).__name__
        plain = KINDS[kind].dump_python(self.answer, exclude_defaults=True)
        return [self.worker, self.key, self.cap, kind, plain]

    @classmethod
    def of(cls, row: Any) -> AnsweredCall:
        """Read a row.

        Raises:
            ValueError, KeyError, TypeError: the row holds no answered call.
        """
        worker, key, cap, kind, plain = row
        return cls(worker, key, cap, KINDS[kind].validate_python(plain))


def generation_key(call: Call, criteria: StopCriteria, sampling: Sampling) -> str | None:
    """Return the key of a generation under any cap; None if chance decides its answer."""
    draws = _draws(sampling)
    about = (_prefix(call.transcript, call.constraint), replace(criteria, max_tokens=0), draws)
    return None if draws is None else _digest("generate", *about, call.speculation)


def classification_key(call: Call, query: LabelQuery) -> str:
    """Return the key of a classification."""
    transcript = call.transcript
    # How likely the last segment is includes an end of the chain that the model wrote.
    finish = transcript.last.finish if query.nll and transcript.last is not None else None
    return _digest("classify", _prefix(transcript), query, *((finish,) if finish in ENDED else ()))


def verification_key(call: Call, segment: Segment, sampling: Sampling, top: int) -> str | None:
    """Return the key of a verification; None if chance decides its answer."""
    draws, seen = _draws(sampling), _prefix(call.transcript, call.constraint)
    return None if draws is None else _digest("verify", seen, segment, draws, top)


def _draws(sampling: Sampling) -> Hashable | None:
    """Return the part of the sampling that decides an answer; None if chance does."""
    if sampling.temperature <= 0:
        return ()
    if sampling.seed is None:
        return None
    return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)


def _prefix(transcript: Transcript, constraint: Constraint | None = None) -> Hashable:
    """Return the part of a transcript that a model sees (no authors, no log-probabilities), and the
    constraint of an answer."""
    seen = [
        tuple((part.text, part.tokens, part.tokenizer) for part in phase)
        for phase in (transcript.thought, transcript.answer)
    ]
    held = (_plain(constraint),) if constraint is not None and transcript.closed else ()
    asked = (transcript.effort,) if transcript.effort else ()
    state = transcript.thinking, transcript.closed
    return (_plain(transcript.messages), *seen, *state, *held, *asked)


def _digest(kind: str, prefix: Hashable, *about: Hashable) -> str:
    """Return a digest, since prefixes are long."""
    return blake2b(repr((kind, prefix, *map(_plain, about))).encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Return tuples for dataclasses, with the fields that are not at their default."""
    if is_dataclass(value):
        given = [(one, getattr(value, one.name)) for one in fields(value)]
        named = tuple((one.name, _plain(item)) for one, item in given if item != one.default)
        return type(value).__name__, *named
    if isinstance(value, tuple) and not (value and isinstance(value[0], int | float)):
        return tuple(map(_plain, value))
    return value
