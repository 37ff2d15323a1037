"""Parts of OpenAI's answers that all dialects share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

from orchestrator.errors import Contradiction, WorkerUnavailable
from orchestrator.types import Usage
from workers.remote.errors import NoLogprobs
from workers.text.tokenizer import Tokenizer
from workers.top_logprobs import probability

ID_NAME = "token_id:"
"""Prefix of a token's name, if a server is asked to name tokens by id."""
ROUNDING = 0.15
"""Nats by which a model's log-probabilities may differ between two paths, or be above 0: bfloat16
has logits of 16 to 32 in steps of 0.125."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer: `top` are the likeliest log-probabilities by id, its own among them;
    `shown` are the bytes of text that came with it, if the server returns them."""

    id: int
    logprob: float | None
    top: Mapping[int, float]
    shown: bytes | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream, or a whole answer: `tokens` is None if the server returns no ids,
    `stop` is the stop string or token id at which it stopped."""

    text: str
    tokens: tuple[Token, ...] | None
    finish: str | None
    stop: str | int | None


class Vocabulary:
    """Token ids from the names that servers give tokens in their log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_text: dict[str, int] = {}

    def id(self, name: str) -> int | None:
        """Return the id of "token_id:N", or of a text that is one token.

        A part of a character has no id by name: servers show each as a replacement character.
        """
        if name.startswith(ID_NAME):
            return int(name[len(ID_NAME) :])
        # If two tokens have one text, as a digit and its byte, take the one that encoding gives.
        ids = self._tokenizer.encode(name)
        if len(ids) == 1:
            return ids[0]
        if not self._by_text:
            pieces = self._tokenizer.pieces
            for i in reversed(range(len(pieces))):
                with suppress(UnicodeDecodeError):
                    self._by_text[pieces[i].decode()] = i
        return self._by_text.get(name)

    def logprobs(self, top: Mapping[str, float] | None) -> dict[int, float]:
        """Return log-probabilities by id, without names that are not tokens."""
        named = {self.id(name): logprob_of(logprob) for name, logprob in (top or {}).items()}
        return distribution((i, p) for i, p in named.items() if i is not None)


@contextmanager
def checked_answer(name: str) -> Iterator[None]:
    """Raise a missing field or a wrong type as WorkerUnavailable, contradictions with the name."""
    try:
        yield
    except (Contradiction, NoLogprobs) as error:
        raise type(error)(f"{name}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise WorkerUnavailable(
            f"{name}: expected an answer of OpenAI's API, but a field is missing or of another "
            f"type ({what}); check that the url is that of such a server"
        ) from None


def logprob_of(value: Any) -> float:
    """Check a log-probability; raise TypeError or ValueError if it is none, or above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a log-probability is a {type(value).__name__}")
    if not value <= ROUNDING:
        raise ValueError(f"a log-probability is {value}, which is above 0")
    return min(0.0, float(value))


def distribution(shown: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Check the log-probabilities of one position; raise ValueError if they add up to over 1."""
    logprobs = dict(shown)
    if (whole := sum(map(probability, logprobs.values()))) > exp(ROUNDING):
        raise ValueError(f"the probabilities of one position add up to {whole:.3g}, not to 1")
    return logprobs


def token_id(value: Any) -> int:
    """Check that an id is a whole number; raise TypeError if not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the id of a token is a {type(value).__name__}")
    return value


def choice_of(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return choice 0 of an answer or a chunk, or None, as in a chunk with usage; raise ValueError
    if there are two."""
    first = [choice for choice in answer["choices"] if choice.get("index", 0) in (0, None)]
    if len(first) > 1:
        raise ValueError(f"{len(first)} choices of number 0")
    return first[0] if first else None


def whole_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return choice 0 of an answer that is not streamed; raise LookupError if it has none."""
    if (choice := choice_of(answer)) is None:
        raise LookupError("no choice of number 0")
    return choice


def text_of(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice, its thought first; raise TypeError or ValueError if it is of
    another type, or comes with a refusal or a call."""
    if (text := choice.get("text")) is not None:
        return _text(text)
    message = choice.get("delta") or choice.get("message") or {}
    for other in ("refusal", "tool_calls", "function_call"):
        if message.get(other):
            raise ValueError(f"{other} instead of a text, which nothing asked for")
    thought = _text(message.get("reasoning_content") or message.get("reasoning"))
    return thought + _text(message.get("content"))


def finish_of(choice: Mapping[str, Any]) -> str | None:
    return _text(choice.get("finish_reason")) or None


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"a text is a {type(value).__name__}")
    return value or ""


class Rows(NamedTuple):
    """By token: names, log-probabilities, and the likeliest ones by name; each empty if missing."""

    names: Sequence[str]
    values: Sequence[Any]
    tops: Sequence[Mapping[str, Any] | None]


def logprob_rows(choice: Mapping[str, Any]) -> Rows:
    shown = choice.get("logprobs") or {}
    if content := shown.get("content"):  # a chat's
        return Rows(
            [item["token"] for item in content],
            [item["logprob"] for item in content],
            [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in content],
        )
    fields = ("tokens", "token_logprobs", "top_logprobs")
    return Rows(*(shown.get(field) or [] for field in fields))


def usage(answer: Mapping[str, Any], prompt: int, generated: int, *, shared: bool = False) -> Usage:
    """Return a call's cost by the server's counts, else by ours (`prompt`, `generated`).

    If `shared`, the server may have cached other owners' prompts, so that count is left out. A
    server does not report passes: count one a token, as in plain decoding.
    """
    counts = answer.get("usage") or {}
    details = {} if shared else counts.get("prompt_tokens_details") or {}
    made = _count(counts.get("completion_tokens")) or generated
    cached = _count(details.get("cached_tokens"))
    return Usage(_count(counts.get("prompt_tokens")) or prompt, cached, made, max(1, made))


def _count(value: Any) -> int:
    """Check a number of tokens, which is below 2^53; None is 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TypeError(f"a number of tokens is {str(value)[:40]!r}")
    return int(value)
