"""How servers speak OpenAI's API: what goes into a body, and what an answer holds.

Fields used here beyond OpenAI's own:

- vLLM and SGLang take token ids as a prompt and return ids (`return_token_ids`); older vLLM spells
  them inside its log-probabilities (`return_tokens_as_token_ids`: "token_id:42"). Both stop at
  `stop_token_ids` and give the reason (`stop_reason`, `matched_stop`), but not before `min_tokens`.
- vLLM returns `prompt_logprobs`; SGLang has its own path for them (`sglang`); others echo the
  prompt with its log-probabilities. vLLM can also be made to draw one of a few tokens
  (`allowed_token_ids`), whose log-probability it then tells.
- llama.cpp's server takes ids, returns them inside its log-probabilities alone, each with its
  bytes, shows as many of them as are asked for, and none of a prompt's. Its sampling has its own
  stages, which `samplers` names.
- In chat, `continue_final_message` continues the assistant's last message.

Nothing here does I/O. What a server can do is learned from its answers, never from its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import exp, inf
from typing import Any, Literal

from orchestrator.errors import Contradiction, Unsupported, WorkerError, WorkerUnavailable
from orchestrator.grammar import holds, is_free
from orchestrator.types import Constraint, Sampling, Usage
from orchestrator.worker import Call
from workers.remote.errors import NoLogprobs
from workers.text.tokenizer import Tokenizer
from workers.top_logprobs import probability

NEUTRAL = {
    "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""What of a checkpoint's own sampling Baton has no setting for, switched off."""
TOP = (20, 5, 1)  # log-probabilities a position to ask for: vLLM's most, OpenAI's most, the least
WIDE = 1000  # those of one position, where a server shows as many as are asked for
EXTRAS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
SAMPLERS = ["temperature", "top_k", "top_p"]
"""llama.cpp's stages that are wanted, in Baton's order; without them its own defaults would cut
the distribution (`top_k` 40, `min_p` 0.05)."""
_ID = "token_id:"
ROUNDING = 0.15
"""Nats by which one model's log-probabilities may differ between two of its paths, or be too high:
bfloat16 has logits of 16 to 32 in steps of 0.125."""


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server can do, as its answers to the probe show.

    prompt: what continues a text: token ids or a text at `/completions`, or chat messages.
    ids: it returns the ids of the tokens it made.
    top: log-probabilities it gives at each position; 0 is none.
    lookups: it draws one of the tokens that a request allows, and tells its log-probability
        among all tokens.
    wide: log-probabilities it gives where a call makes one token, if more than `top`; else 0.
    numbered: its log-probabilities carry ids and bytes (llama.cpp); it returns ids nowhere else.
    missing: what its streams lack at some tokens although whole answers have it: log-probabilities,
        or ids (and with them log-probabilities), as llama.cpp's with a draft model and those that
        a proxy passes on.
    draws: the field that makes it sample; "generation_config" also takes `do_sample` there
        (`transformers serve`). None: it writes the same at any temperature.
    forms: it holds an answer to a JSON schema (`constraint_fields`).
    extras: it takes fields that are not OpenAI's, whether or not it reads them.
    stops: where its streams have no ids it stops at stop strings, and its text shows the marker
        that ends a thought, or it stops there; also if nothing shows the contrary.
    min_tokens: it lets no text end before this many tokens.
    prompt_logprobs: the field that asks for those of the prompt, where it has them; "sglang": its
        own path gives them (`workers.remote.sglang`), and of named tokens.
    """

    prompt: Literal["ids", "text", "chat"]
    ids: bool = False
    top: int = 0
    lookups: bool = False
    prompt_logprobs: Literal["prompt_logprobs", "echo", "sglang"] | None = None
    wide: int = 0
    numbered: bool = False
    min_tokens: bool = False
    missing: Literal["ids", "logprobs"] | None = None
    draws: Literal["temperature", "generation_config"] | None = "temperature"
    forms: bool = False
    extras: bool = False
    stops: bool = True

    @property
    def reads_ids(self) -> bool:
        """Whether a stream's tokens are read from its ids; else its text is encoded again."""
        return self.ids and self.missing != "ids"

    @property
    def reads_logprobs(self) -> bool:
        """Whether all tokens of a stream come with log-probabilities."""
        return self.reads_ids and self.top > 0 and self.missing is None

    @property
    def salts(self) -> bool:
        """Whether it keeps the cached prefixes of callers apart (`cache_salt`, as vLLM does)."""
        return self.ids and not self.numbered

    @property
    def path(self) -> str:
        return "/chat/completions" if self.prompt == "chat" else "/completions"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer: its id, and the log-probabilities by id that came with it.

    `logprob` is None where the server gave none; `top` holds the likeliest ones, itself among them.
    `shown` are the bytes of text that came with it, where the server says so.
    """

    id: int
    logprob: float | None
    top: Mapping[int, float]
    shown: bytes | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream, or a whole answer.

    `tokens` is None where the server returns no ids. `finish` is the server's finish_reason and
    `stop` what it stopped at: a stop string or the id of a token.
    """

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
        """The id behind "token_id:N", or behind a text that is one token.

        Part of a character has no name: servers show any of them as a replacement character.
        """
        if name.startswith(_ID):
            return int(name[len(_ID) :])
        # If two have one text, as a digit and its byte, take the one that the text is encoded as.
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
        """Log-probabilities by id; names that are no token are left out."""
        named = {self.id(name): logprob_of(logprob) for name, logprob in (top or {}).items()}
        return distribution((i, p) for i, p in named.items() if i is not None)


def session(name: str) -> dict[str, str]:
    """Headers: routers before several replicas keep a session on one of them, for its cache."""
    return {"x-session-id": name} if name.isascii() and name.isprintable() else {}


@contextmanager
def checked_answer(name: str) -> Iterator[None]:
    """Errors of parsing an answer (a field missing, or of another type) as WorkerUnavailable, and
    what an answer contradicts with the server's name."""
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


def request_fields(
    model: str, sampling: Sampling, capabilities: ServerCapabilities, tokens: int, top: int = 1
) -> dict[str, Any]:
    """The request fields besides the prompt: tokens, sampling, log-probabilities."""
    fields = {"model": model, "max_tokens": max(1, tokens)}
    return fields | sampling_fields(sampling, capabilities) | logprob_fields(top, capabilities)


def sampling_fields(sampling: Sampling, capabilities: ServerCapabilities) -> dict[str, Any]:
    """A request's sampling fields.

    A server with vLLM's extensions gets every setting, since for one that is missing it takes the
    checkpoint's (`generation_config.json`), and so does llama.cpp's, which has its own defaults;
    others get what differs from OpenAI's default.
    """
    body: dict[str, Any] = {"temperature": sampling.temperature}
    top_k = sampling.top_k or -1  # 0 is off as well, but smg's gateway refuses it
    if capabilities.draws == "generation_config":
        body |= generation_config(sampling)
    elif capabilities.numbered:
        body |= {"top_k": top_k, "top_p": sampling.top_p, "samplers": SAMPLERS}
    elif capabilities.ids:
        body |= NEUTRAL | {"top_k": top_k, "top_p": sampling.top_p}
    else:
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.temperature > 0 and sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def generation_config(sampling: Sampling) -> dict[str, Any]:
    """The field by which `transformers serve` samples, whatever the checkpoint says of it."""
    settings = {
        "do_sample": not sampling.is_greedy,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "repetition_penalty": 1.0,
    }
    return {"generation_config": json.dumps(settings)}


def constraint_fields(call: Call, capabilities: ServerCapabilities) -> dict[str, Any]:
    """A request's fields that hold its text to the call's constraint: vLLM's, or llama.cpp's.

    Raises:
        Unsupported: no server is asked for such a constraint, or for one in mid-answer.
    """
    constraint = call.constraint
    if constraint is None or is_free(constraint):
        return {}
    if call.transcript.reply.strip():
        raise Unsupported("going on within an answer that is held to a grammar")
    if constraint.kind == "json_schema":
        schema = json.loads(constraint.source)
        if capabilities.numbered:
            return {"json_schema": schema}
        return {"structured_outputs": {"json": schema}}
    if constraint.kind == "regex" and not capabilities.numbered:
        return {"structured_outputs": {"regex": constraint.source}}
    raise Unsupported(
        "an answer held to a grammar or to calls of tools, which no server is asked for"
    )


def check_held(constraint: Constraint | None, text: str, name: str) -> None:
    """Refuse a whole answer that its server did not hold to what it was asked to.

    Raises:
        WorkerError: names the server.
    """
    if constraint is not None and not is_free(constraint) and not holds(constraint, text):
        raise WorkerError(
            f"{name} did not hold its answer to the form that was asked for: check that it takes "
            "structured_outputs (vLLM) or json_schema (llama.cpp)"
        )


def logprob_fields(top: int, capabilities: ServerCapabilities) -> dict[str, Any]:
    """The fields that ask for `top` log-probabilities a position and for ids."""
    body: dict[str, Any] = {}
    if capabilities.ids and not capabilities.numbered:
        body |= EXTRAS
    if capabilities.top and capabilities.prompt == "chat":
        body |= {"logprobs": True, "top_logprobs": min(top, capabilities.top)}
    elif capabilities.top:
        body |= {"logprobs": min(top, max(capabilities.top, capabilities.wide))}
    return body


def logprob_of(value: Any) -> float:
    """A log-probability as it came.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a log-probability is a {type(value).__name__}")
    if not value <= ROUNDING:
        raise ValueError(f"a log-probability is {value}, which is above 0")
    return min(0.0, float(value))


def distribution(shown: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Log-probabilities by id of one position.

    Raises:
        ValueError: together they are more than 1.
    """
    logprobs = dict(shown)
    if (whole := sum(map(probability, logprobs.values()))) > exp(ROUNDING):
        raise ValueError(f"the probabilities of one position add up to {whole:.3g}, not to 1")
    return logprobs


def choice_of(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The choice of an answer or a chunk that is asked for, number 0; None where it holds others
    or none, as a chunk of usage does.

    Raises:
        ValueError: there are two of it.
    """
    first = [choice for choice in answer["choices"] if choice.get("index", 0) in (0, None)]
    if len(first) > 1:
        raise ValueError(f"{len(first)} choices of number 0")
    return first[0] if first else None


def whole_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice of an answer that is not streamed.

    Raises:
        LookupError: there is none.
    """
    if (choice := choice_of(answer)) is None:
        raise LookupError("no choice of number 0")
    return choice


def parse_chunk(answer: Mapping[str, Any], vocabulary: Vocabulary) -> Chunk | None:
    """The choice of an answer or a chunk; None where it holds none (a chunk of usage).

    Raises:
        LookupError, TypeError, ValueError: a field is missing or of another type, or there is
            something that is neither text nor thought.
    """
    if (choice := choice_of(answer)) is None:
        return None
    text = choice.get("text")
    if text is None:
        message = choice.get("delta") or choice.get("message") or {}
        for other in ("refusal", "tool_calls", "function_call"):
            if message.get(other):
                raise ValueError(f"{other} instead of a text, which nothing asked for")
        thought = _text(message.get("reasoning_content") or message.get("reasoning"))
        text = thought + _text(message.get("content"))
    stop, finish = (
        choice.get("stop_reason", choice.get("matched_stop")),
        choice.get("finish_reason"),
    )
    return Chunk(_text(text), _tokens(choice, vocabulary), _text(finish) or None, stop)


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"a text is a {type(value).__name__}")
    return value or ""


def _token_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the id of a token is a {type(value).__name__}")
    return value


def _tokens(choice: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Token, ...] | None:
    logprobs = choice.get("logprobs") or {}
    if (content := logprobs.get("content")) and all("id" in item for item in content):
        return tuple(_numbered_token(item, vocabulary) for item in content)
    if content:  # chat
        names = [item["token"] for item in content]
        values = [item["logprob"] for item in content]
        tops = [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in content]
    else:
        names, values = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
        tops = logprobs.get("top_logprobs") or []
    ids = choice.get("token_ids")
    if ids is None and names and all(name.startswith(_ID) for name in names):
        ids = [vocabulary.id(name) for name in names]
    if ids is None:
        return None
    by_id = [vocabulary.logprobs(top) for top in tops] if len(tops) == len(ids) else [{}] * len(ids)
    known = values if len(values) == len(ids) else [None] * len(ids)
    return tuple(
        Token(_token_id(i), None if value is None else logprob_of(value), top)
        for i, value, top in zip(ids, known, by_id, strict=True)
    )


def _numbered_token(item: Mapping[str, Any], vocabulary: Vocabulary) -> Token:
    """A token as llama.cpp's server gives it. One that its draft model drafted has no
    log-probability, for which it says 0 in whole answers."""
    top = _content_logprobs(item, vocabulary)
    return Token(
        _token_id(item["id"]),
        logprob_of(item["logprob"]) if top else None,
        top,
        bytes(item["bytes"] or ()) if "bytes" in item else None,
    )


def _content_logprobs(item: Mapping[str, Any], vocabulary: Vocabulary) -> dict[int, float]:
    """By id, those shown at one position in the form that OpenAI gives them in chat."""
    tops = item["top_logprobs"]
    if all("id" in top for top in tops):
        return distribution((_token_id(top["id"]), logprob_of(top["logprob"])) for top in tops)
    return vocabulary.logprobs({top["token"]: top["logprob"] for top in tops})


def no_logprobs() -> NoLogprobs:
    """The error where a server that showed log-probabilities to the probe shows none."""
    return NoLogprobs(
        "expected log-probabilities of the first token, by names that the tokenizer has, as in the "
        "probe, got none; restart this service if the server was replaced"
    )


def shown_bytes(answer: Mapping[str, Any]) -> dict[int, bytes]:
    """The bytes of tokens by id, of those shown at the first position with both; may be empty."""
    content = (whole_choice(answer).get("logprobs") or {}).get("content") or [{}]
    tops = content[0].get("top_logprobs") or ()
    return {int(top["id"]): bytes(top["bytes"]) for top in tops if "id" in top and top.get("bytes")}


def first_logprobs(
    answer: Mapping[str, Any], vocabulary: Vocabulary, echoed: int = 0
) -> dict[int, float]:
    """Log-probabilities of the first token made, by id, whether or not the server returns ids.

    `echoed` tokens of the prompt come before it.
    """
    logprobs = whole_choice(answer).get("logprobs") or {}
    if content := logprobs.get("content"):
        return _content_logprobs(content[0], vocabulary)
    tops = logprobs.get("top_logprobs") or [None]
    return vocabulary.logprobs(tops[echoed])


def prompt_logprobs(
    answer: Mapping[str, Any], ids: Sequence[int], last: int, vocabulary: Vocabulary
) -> list[tuple[float, dict[int, float]]] | None:
    """(its own, those shown by id) of each of the `last` last prompt ids; None without them."""
    choice = whole_choice(answer)
    start = len(ids) - last
    positions = choice.get("prompt_logprobs")
    if isinstance(positions, list) and len(positions) == len(ids):
        tops = [
            distribution((int(i), logprob_of(item["logprob"])) for i, item in top.items())
            for top in positions[start:]
        ]
        return [(top[i], top) for i, top in zip(ids[start:], tops, strict=True)]
    echoed = choice.get("logprobs") or {}
    values, named = echoed.get("token_logprobs") or [], echoed.get("top_logprobs") or []
    if not len(ids) <= len(values) <= len(named) <= len(ids) + 1:
        return None
    rows = zip(ids[start:], values[start : len(ids)], named[start : len(ids)], strict=True)
    return [
        (logprob_of(value), {i: logprob_of(value)} | vocabulary.logprobs(top))
        for i, value, top in rows
    ]


def point_logprobs(
    answer: Mapping[str, Any], labels: Mapping[str, int], vocabulary: Vocabulary
) -> list[float]:
    """The log-probability of each label (text to id) if all is on the one token that was made."""
    chunk = parse_chunk(answer, vocabulary)
    if chunk is not None and chunk.tokens:
        made = [i == chunk.tokens[0].id for i in labels.values()]
    else:
        made = [chunk is not None and label == chunk.text.strip() for label in labels]
    return [0.0 if one else -inf for one in made]


def next_token(answer: Mapping[str, Any], length: int, vocabulary: Vocabulary) -> Token | None:
    """The one token made behind a prompt of `length` ids; None without log-probabilities."""
    choice, chunk = whole_choice(answer), parse_chunk(answer, vocabulary)
    logprobs = choice.get("logprobs") or {}
    echoed = 0 if isinstance(choice.get("prompt_logprobs"), list) else length
    fields = ("tokens", "token_logprobs", "top_logprobs")
    names, values, tops = ((logprobs.get(field) or [])[echoed:] for field in fields)
    if not (names and values and tops) or values[0] is None:
        return None
    if choice.get("token_ids") and chunk is not None and chunk.tokens:
        made: int | None = chunk.tokens[-1].id
    else:
        made = vocabulary.id(names[0])
    if made is None:
        return None
    own = logprob_of(values[0])
    return Token(made, own, {made: own} | vocabulary.logprobs(tops[0]))


def scored_places(
    answer: Mapping[str, Any], ids: Sequence[int], part: range, vocabulary: Vocabulary
) -> tuple[list[float], list[Mapping[int, float]], int | None]:
    """The log-probability of each of the ids in a part of a prompt; those shown at their places and
    behind them; and the token made, if it follows them.

    Raises:
        ValueError: the answer does not hold them.
    """
    rows = prompt_logprobs(answer, ids, len(ids) - part.start, vocabulary)
    made = next_token(answer, len(ids), vocabulary) if part.stop == len(ids) else None
    if rows is None or (part.stop == len(ids) and made is None):
        raise ValueError("no log-probabilities of the prompt, or of the token behind it")
    known: list[Mapping[int, float]] = [shown for _, shown in rows[: len(part) + 1]]
    if made is not None:
        known.append(made.top)
    return [logprob for logprob, _ in rows[: len(part)]], known, None if made is None else made.id


def context(models: Any, name: str) -> int | None:
    """The context of a model by the server's list of models, where it says so.

    A server of one model may answer to any name (llama.cpp's does).
    """
    listed = models.get("data") or ()
    for model in listed:
        if model.get("id") == name or len(listed) == 1:
            size = model.get("max_model_len") or (model.get("meta") or {}).get("n_ctx")
            return size if isinstance(size, int) else None
    return None


def owner_fields(owner: str, capabilities: ServerCapabilities) -> dict[str, Any]:
    """The field that keeps the cached prefixes of a call's owner from those of others."""
    return {"cache_salt": owner} if owner and capabilities.salts else {}


def usage(answer: Mapping[str, Any], prompt: int, generated: int, *, shared: bool = False) -> Usage:
    """What a call cost by the server's counts, or where it gives none by ours.

    `shared`: what the server has cached may be others' prompts, so how much is not reported.

    How many passes a server took it does not say: one a token is plain decoding.
    """
    counts = answer.get("usage") or {}
    details = {} if shared else counts.get("prompt_tokens_details") or {}
    made = _count(counts.get("completion_tokens")) or generated
    cached = _count(details.get("cached_tokens"))
    return Usage(_count(counts.get("prompt_tokens")) or prompt, cached, made, max(1, made))


def _count(value: Any) -> int:
    """A number of tokens; 0 where the server does not say."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise TypeError(f"a number of tokens is {str(value)[:40]!r}")
    return int(value)
