"""How servers speak OpenAI's API: what goes into a body, and what an answer holds.

Servers agree on little beyond `prompt` and `text`. What is used here beyond OpenAI's own fields:

- vLLM and SGLang take token ids as a prompt and return ids (`return_token_ids`); older vLLM spells
  them inside its log-probabilities (`return_tokens_as_token_ids`: "token_id:42"). Both stop at
  `stop_token_ids` and say why they stopped (`stop_reason`, `matched_stop`).
- vLLM returns `prompt_logprobs`; others echo the prompt with its log-probabilities. vLLM also
  gives the log-probabilities of tokens named in advance (`logprob_token_ids`).
- In chat, `continue_final_message` goes on with the assistant's last message.

Nothing here does I/O. What a server can do is seen from its answers, never assumed from its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import WorkerUnavailable
from orchestrator.types import Classification, Sampling, Usage
from workers.remote.logprobs import choices, ending, probability
from workers.text.tokenizer import Tokenizer
from workers.text.verification import ScoreOutput

TOP = (20, 5, 1)  # log-probabilities a position to ask for: vLLM's most, OpenAI's most, the least
EXTRAS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server was seen to do.

    prompt: what continues a text: token ids or a text at `/completions`, or chat messages.
    ids: it returns the ids of the tokens it made.
    top: log-probabilities it gives at each position; 0 is none.
    labels: it gives the log-probabilities of tokens that the request names.
    prompt_logprobs: the field that asks for those of the prompt, where it has them.
    """

    prompt: Literal["ids", "text", "chat"]
    ids: bool = False
    top: int = 0
    labels: bool = False
    prompt_logprobs: Literal["prompt_logprobs", "echo"] | None = None

    @property
    def path(self) -> str:
        return "/chat/completions" if self.prompt == "chat" else "/completions"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer: its id, and the log-probabilities by id that came with it.

    `logprob` is None where the server gave none; `top` holds the likeliest ones, itself among them.
    """

    id: int
    logprob: float | None
    top: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of a stream, or a whole answer.

    `tokens` is None where the server tells no ids. `finish` is the server's finish_reason and
    `stop` what it stopped at: a stop string or the id of a token.
    """

    text: str
    tokens: tuple[Token, ...] | None
    finish: str | None
    stop: str | int | None


class Vocabulary:
    """Token ids from the names that servers give tokens in their log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.pieces
        self._by_text: dict[str, int] = {}

    def id(self, name: str) -> int | None:
        """The id behind "token_id:N", or behind a text that is one token."""
        if name.startswith(_ID):
            return int(name[len(_ID) :])
        if not self._by_text:
            for i in reversed(range(len(self._pieces))):  # of two with one text, the lower id
                self._by_text[self._pieces[i].decode("utf-8", "replace")] = i
        return self._by_text.get(name)

    def law(self, top: Mapping[str, float] | None) -> dict[int, float]:
        """Log-probabilities by id; names that are no token are left out."""
        named = {self.id(name): float(logprob) for name, logprob in (top or {}).items()}
        return {i: p for i, p in named.items() if i is not None}


def session(request: str) -> dict[str, str]:
    """Headers: routers before several replicas keep a session on one of them, for its cache."""
    return {"x-session-id": request} if request.isascii() and request.isprintable() else {}


@contextmanager
def checked_answer(name: str) -> Iterator[None]:
    """Where something in an answer is missing, or is of another kind than it should be."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise WorkerUnavailable(
            f"{name}: expected an answer of OpenAI's API, but a field is missing or of another "
            f"type ({what}); check that the url is that of such a server"
        ) from None


def wanted(
    model: str, sampling: Sampling, abilities: ServerCapabilities, tokens: int, top: int = 1
) -> dict[str, Any]:
    """The request fields besides the prompt: how many tokens, how drawn, and what to tell."""
    asked = {"model": model, "max_tokens": max(1, tokens)}
    return asked | sampled(sampling, abilities) | with_logprobs(top, abilities)


def sampled(sampling: Sampling, abilities: ServerCapabilities) -> dict[str, Any]:
    """A request's sampling fields.

    A server that speaks our extensions is told every setting, since it would else fill in the
    checkpoint's own (`generation_config.json`); others are told what differs from OpenAI's default.
    """
    body: dict[str, Any] = {"temperature": sampling.temperature}
    if abilities.ids:
        body |= {"top_k": sampling.top_k or -1, "top_p": sampling.top_p, "repetition_penalty": 1.0}
    else:
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.temperature > 0 and sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def with_logprobs(top: int, abilities: ServerCapabilities) -> dict[str, Any]:
    """The fields that ask for `top` log-probabilities a position and for ids."""
    body: dict[str, Any] = dict(EXTRAS) if abilities.ids else {}
    if abilities.top and abilities.prompt == "chat":
        body |= {"logprobs": True, "top_logprobs": min(top, abilities.top)}
    elif abilities.top:
        body |= {"logprobs": min(top, abilities.top)}
    return body


def read(answer: Mapping[str, Any], vocabulary: Vocabulary) -> Piece | None:
    """The first choice of an answer or a chunk; None where it holds none (a chunk of usage)."""
    if not answer["choices"]:
        return None
    choice = answer["choices"][0]
    text = choice.get("text")
    if text is None:
        said = choice.get("delta") or choice.get("message") or {}
        thought = said.get("reasoning_content") or said.get("reasoning") or ""
        text = thought + (said.get("content") or "")
    stop = choice.get("stop_reason", choice.get("matched_stop"))
    return Piece(text, _tokens(choice, vocabulary), choice.get("finish_reason"), stop)


def _tokens(choice: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Token, ...] | None:
    told = choice.get("logprobs") or {}
    if content := told.get("content"):  # chat
        names = [item["token"] for item in content]
        logprobs = [item["logprob"] for item in content]
        tops = [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in content]
    else:
        names, logprobs = told.get("tokens") or [], told.get("token_logprobs") or []
        tops = told.get("top_logprobs") or []
    ids = choice.get("token_ids")
    if ids is None and names and all(name.startswith(_ID) for name in names):
        ids = [vocabulary.id(name) for name in names]
    if ids is None:
        return None
    laws = [vocabulary.law(top) for top in tops] if len(tops) == len(ids) else [{}] * len(ids)
    known = logprobs if len(logprobs) == len(ids) else [None] * len(ids)
    return tuple(Token(*item) for item in zip(map(int, ids), known, laws, strict=True))


def first_law(
    answer: Mapping[str, Any], vocabulary: Vocabulary, echoed: int = 0
) -> dict[int, float]:
    """Log-probabilities of the first token made, by id, whether or not the server tells ids.

    `echoed` tokens of the prompt come before it.
    """
    told = answer["choices"][0].get("logprobs") or {}
    if content := told.get("content"):
        return vocabulary.law({top["token"]: top["logprob"] for top in content[0]["top_logprobs"]})
    tops = told.get("top_logprobs") or [None]
    return vocabulary.law(tops[echoed])


def prompt_laws(
    answer: Mapping[str, Any], ids: Sequence[int], last: int, vocabulary: Vocabulary
) -> list[tuple[float, dict[int, float]]] | None:
    """(log-probability, law by id) of each of the `last` last prompt ids; None if not told."""
    choice = answer["choices"][0]
    start = len(ids) - last
    told = choice.get("prompt_logprobs")
    if isinstance(told, list) and len(told) == len(ids):
        laws = [{int(i): item["logprob"] for i, item in law.items()} for law in told[start:]]
        return [(law[i], law) for i, law in zip(ids[start:], laws, strict=True)]
    echoed = choice.get("logprobs") or {}
    values, tops = echoed.get("token_logprobs") or [], echoed.get("top_logprobs") or []
    if not len(ids) <= len(values) <= len(tops) <= len(ids) + 1:
        return None
    rows = zip(ids[start:], values[start : len(ids)], tops[start : len(ids)], strict=True)
    return [(value, {i: value} | vocabulary.law(top)) for i, value, top in rows]


def masses(
    answer: Mapping[str, Any], labels: Mapping[str, int], vocabulary: Vocabulary, echoed: int = 0
) -> list[float]:
    """The probability of each label (text to id) as the first token made, behind an echoed prompt.

    Without log-probabilities all of it is on the token that was made. A label that is not among
    those shown counts as impossible.
    """
    if law := first_law(answer, vocabulary, echoed):
        return [probability(law[i]) if i in law else 0.0 for i in labels.values()]
    piece = read(answer, vocabulary)
    if piece is not None and piece.tokens:
        return [float(i == piece.tokens[0].id) for i in labels.values()]
    return [float(piece is not None and label == piece.text.strip()) for label in labels]


def following(answer: Mapping[str, Any], length: int, vocabulary: Vocabulary) -> Token | None:
    """The one token made behind a prompt of `length` ids, with its law; None if not told."""
    choice, piece = answer["choices"][0], read(answer, vocabulary)
    told = choice.get("logprobs") or {}
    echoed = 0 if isinstance(choice.get("prompt_logprobs"), list) else length
    fields = ("tokens", "token_logprobs", "top_logprobs")
    names, values, tops = ((told.get(field) or [])[echoed:] for field in fields)
    if not (names and values and tops) or values[0] is None:
        return None
    if choice.get("token_ids") and piece is not None and piece.tokens:
        made: int | None = piece.tokens[-1].id
    else:
        made = vocabulary.id(names[0])
    if made is None:
        return None
    return Token(made, values[0], {made: float(values[0])} | vocabulary.law(tops[0]))


def classification(
    answer: Mapping[str, Any],
    labels: Mapping[str, int],
    vocabulary: Vocabulary,
    spent: Usage,
    ms: float,
    echoed: int = 0,
) -> Classification:
    """The law over `labels` (text to id) at the first token made, behind an echoed prompt."""
    found = masses(answer, labels, vocabulary, echoed)
    inside = sum(found)
    return Classification(
        labels=tuple(labels),
        probabilities=tuple(m / inside if inside else 1 / len(found) for m in found),
        outside=max(0.0, 1.0 - inside),
        usage=spent,
        ms=ms,
    )


def surprises(
    answer: Mapping[str, Any],
    ids: Sequence[int],
    part: slice,
    ends: Collection[int],
    vocabulary: Vocabulary,
) -> tuple[tuple[float, ...], float]:
    """The surprise at a part of the ids of a prompt, and at any of `ends` behind that part.

    Raises:
        ValueError: the answer does not hold them.
    """
    told = prompt_laws(answer, ids, len(ids) - part.start, vocabulary)
    if told is None:
        raise ValueError("no log-probabilities of the prompt")
    (*judged, (_, behind)) = told[: part.stop - part.start + 1]
    return tuple(-logprob for logprob, _ in judged), ending(behind, ends)


def score_output(
    answer: Mapping[str, Any],
    ids: Sequence[int],
    last: int,
    sampling: Sampling,
    ends: Collection[int],
    vocabulary: Vocabulary,
) -> ScoreOutput:
    """The surprise at the `last` last ids of a prompt, and a choice at each and behind them.

    `ends` are the ids that would end the text there.

    Raises:
        ValueError: the answer does not hold them.
    """
    told, made = prompt_laws(answer, ids, last, vocabulary), following(answer, len(ids), vocabulary)
    if told is None or made is None:
        raise ValueError("no log-probabilities of the prompt, or of the token behind it")
    laws = [law for _, law in told]
    chosen = choices(laws, sampling, len(ids) - last)
    return ScoreOutput(
        nll=[-logprob for logprob, _ in told],
        choices=[*chosen, made.id],
        logprobs=[*(law[i] for i, law in zip(chosen, laws, strict=True)), made.top[made.id]],
        ending=ending(made.top, ends),
    )


def context(models: Any, name: str) -> int | None:
    """The context of a model by the server's list of models, where it says so."""
    for model in models.get("data") or ():
        if model.get("id") == name and isinstance(size := model.get("max_model_len"), int):
            return size
    return None


def usage(answer: Mapping[str, Any], prompt: int, generated: int) -> Usage:
    """What a call cost by the server's account, or by ours (`prompt`, `generated`) for want of it.

    How many passes a server took it does not say: one a token is plain decoding.
    """
    told = answer.get("usage") or {}
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    made = int(told.get("completion_tokens") or generated)
    return Usage(int(told.get("prompt_tokens") or prompt), int(cached), made, max(1, made))
