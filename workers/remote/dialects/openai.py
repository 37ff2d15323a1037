"""What all dialects share, and the one of servers that return no ids: Ollama, mlx_lm.server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final

from orchestrator.errors import Unsupported
from orchestrator.grammar import is_free
from orchestrator.types import Constraint, Sampling
from orchestrator.worker import Call
from workers.remote.errors import NoLogprobs
from workers.remote.protocol import (
    Chunk,
    Token,
    Vocabulary,
    choice_of,
    finish_of,
    logprob_of,
    logprob_rows,
    text_of,
    token_id,
    whole_choice,
)
from workers.text.continuation import Continuation
from workers.text.tokenizer import Tokenizer
from workers.top_logprobs import Known


class OpenAI:
    """The fields of a request besides its prompt, and how an answer is read; subclasses differ.

    A dialect has no state. The probe finds what a server of a dialect lacks (a proxy drops it,
    another version ignores it).

    Attributes:
        id_fields: ask for the ids of tokens; every server is sent those of all dialects once.
        returns_ids: whether it returns the ids of the tokens that it made.
        most_logprobs: of one position, if it returns as many as it is asked for; else 0.
        token_a_chunk: whether a stream has a chunk for each token, and one for the reason to end.
        left_out: tokens at the end of a text that it may count and not send.
        names_stop: whether it says at which stop string it stopped.
        rereads: whether it reads a whole prompt again to score its last tokens.
        restricts: whether it may read `min_tokens` and `allowed_token_ids`; the probe tries both.
    """

    name: ClassVar[str] = "OpenAI"
    id_fields: ClassVar[Mapping[str, Any]] = {}
    returns_ids: ClassVar[bool] = False
    most_logprobs: ClassVar[int] = 0
    token_a_chunk: ClassVar[bool] = False
    left_out: ClassVar[int] = 0
    names_stop: ClassVar[bool] = True
    rereads: ClassVar[bool] = True
    restricts: ClassVar[bool] = False

    def __repr__(self) -> str:
        return self.name

    # What a request says.

    def sampling_fields(self, sampling: Sampling) -> dict[str, Any]:
        fields = {"temperature": sampling.temperature} | self.cuts(sampling)
        if sampling.temperature > 0 and sampling.seed is not None:
            fields["seed"] = sampling.seed
        return fields

    def cuts(self, sampling: Sampling) -> dict[str, Any]:
        """Return the fields of top-p and top-k that differ from the defaults."""
        top_p = {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        return top_p | ({"top_k": sampling.top_k} if sampling.top_k else {})

    def logprob_fields(self, top: int, *, chat: bool) -> dict[str, Any]:
        """Return the fields that ask for `top` log-probabilities a position, and for ids."""
        fields = {"logprobs": True, "top_logprobs": top} if chat else {"logprobs": top}
        return {**(fields if top else {}), **self.id_fields}

    def prompt_logprob_fields(self, top: int) -> dict[str, Any]:
        """Return the field that asks for log-probabilities of the prompt, here by an echo; none if
        no field does."""
        return {"echo": True}

    def stop_fields(
        self, text: Continuation, tokenizer: Tokenizer, *, steps: bool = True
    ) -> dict[str, Any]:
        """Return the fields that stop a server that returns ids where a text ends; without `steps`,
        not at the delimiters of steps."""
        until = text.criteria.until if steps else ()
        texts = stop_strings(text, (*until, *text.criteria.stop))
        fields: dict[str, Any] = {}
        if text.closing and tokenizer.close_id is not None:
            fields["stop_token_ids"] = [tokenizer.close_id]
        else:
            texts += [stop for stop, _ in tokenizer.stops(text.thinking)]
        return fields | ({"stop": texts} if texts else {})

    def marker_fields(self, tokenizer: Tokenizer, *, ending: bool, extras: bool) -> dict[str, Any]:
        """Return the fields for a server without ids: stop at the marker that ends a thought (if
        `ending`), though its text may hide it, and show the markers (`extras` alone).

        Such a server cuts a stop string off and does not say which it was, so other stop strings
        are found here. vLLM reads `stop_token_ids`, llama.cpp `preserved_tokens`.
        """
        if (marks := tokenizer.format) is None:
            return {}
        fields: dict[str, Any] = {"stop": [marks.close.strip()]} if ending else {}
        if extras and tokenizer.close_id is not None:
            fields["preserved_tokens"] = [marks.open.strip(), marks.close.strip()]
            if ending:
                fields["stop_token_ids"] = [tokenizer.close_id]
        return fields

    def form_fields(self, call: Call) -> dict[str, Any]:
        """Return the field that constrains the answer to the call's form.

        Raises:
            Unsupported: no field expresses the constraint, or the answer has begun already.
        """
        constraint = call.constraint
        if constraint is None or is_free(constraint):
            return {}
        if call.transcript.reply.strip():
            raise Unsupported("going on within an answer that is held to a grammar")
        if (fields := self.constrained(constraint)) is None:
            raise Unsupported(
                "an answer held to a grammar or to calls of tools, which no server is asked for"
            )
        return fields

    def constrained(self, constraint: Constraint) -> dict[str, Any] | None:
        """Return the field for a constraint; None if the dialect has none."""
        if constraint.kind not in ("json_schema", "regex"):
            return None
        if constraint.kind == "regex":
            return {"structured_outputs": {"regex": constraint.source}}
        return {"structured_outputs": {"json": json.loads(constraint.source)}}

    def owner_fields(self, owner: str) -> dict[str, Any]:
        """Return the field that keeps owners' cached prefixes apart; none if no field does."""
        return {}

    def effort_fields(self, level: Mapping[str, str]) -> dict[str, Any]:
        """Return the field for a level of effort, which comes as the template's variable."""
        return {"reasoning_effort": next(iter(level.values()))}

    # How an answer is read. Each raises LookupError, TypeError or ValueError if a field is missing
    # or of another type.

    def chunk(self, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Chunk | None:
        """Read an answer or a chunk; None if it has no choice, only usage."""
        if (choice := choice_of(answer)) is None:
            return None
        stop = choice.get("stop_reason", choice.get("matched_stop"))
        return Chunk(text_of(choice), self.tokens(choice, vocabulary), finish_of(choice), stop)

    def tokens(self, choice: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Token, ...] | None:
        """Return the tokens of a choice; None if it has no ids."""
        return None

    def first_logprobs(
        self, answer: Mapping[str, Any], vocabulary: Vocabulary, echoed: int = 0
    ) -> dict[int, float]:
        """Return log-probabilities by id of the first token made, after `echoed` prompt tokens."""
        tops = logprob_rows(whole_choice(answer)).tops
        return vocabulary.logprobs(tops[echoed]) if tops else {}

    def prompt_length(self, ids: Sequence[int]) -> int:
        """Return how many prompt tokens precede the first one made, if they are asked for."""
        return len(ids)

    def prompt_logprobs(
        self, answer: Mapping[str, Any], ids: Sequence[int], last: int, vocabulary: Vocabulary
    ) -> list[tuple[float, dict[int, float]]]:
        """Return (its own, those returned by id) for each of the `last` last prompt ids."""
        rows = logprob_rows(whole_choice(answer))
        if not len(ids) <= len(rows.values) <= len(rows.tops) <= len(ids) + 1:
            raise ValueError("no log-probabilities of the prompt")
        part = slice(len(ids) - last, len(ids))
        return [
            (logprob_of(value), {i: logprob_of(value)} | vocabulary.logprobs(top))
            for i, value, top in zip(ids[part], rows.values[part], rows.tops[part], strict=True)
        ]

    def scored_places(
        self, answer: Mapping[str, Any], ids: Sequence[int], part: range, vocabulary: Vocabulary
    ) -> Known:
        """Return the log-probabilities at the places of a part of a prompt, and after them."""
        rows = self.prompt_logprobs(answer, ids, len(ids) - part.start, vocabulary)
        own = [logprob for logprob, _ in rows[: len(part)]]
        shown = [here for _, here in rows[: len(part) + 1]]
        if part.stop < len(ids):
            return Known(own, shown, None)
        made = self._made(answer, ids, vocabulary)
        return Known(own, [*shown, made.top], made.id)

    def _made(self, answer: Mapping[str, Any], ids: Sequence[int], vocabulary: Vocabulary) -> Token:
        """Return the one token made after a prompt."""
        choice, at = whole_choice(answer), self.prompt_length(ids)
        rows, given = logprob_rows(choice), choice.get("token_ids")
        made = token_id(given[-1]) if given else vocabulary.id(rows.names[at])
        if made is None:
            raise ValueError("the tokenizer does not have the token that was made")
        own = logprob_of(rows.values[at])
        return Token(made, own, {made: own} | vocabulary.logprobs(rows.tops[at]))

    def point_logprobs(
        self, answer: Mapping[str, Any], labels: Mapping[str, int], vocabulary: Vocabulary
    ) -> list[float]:
        """Return the log-probability of each label (text to id), all on the one token made."""
        chunk = self.chunk(answer, vocabulary)
        if chunk is not None and chunk.tokens:
            made = [i == chunk.tokens[0].id for i in labels.values()]
        else:
            made = [chunk is not None and label == chunk.text.strip() for label in labels]
        return [0.0 if one else -inf for one in made]


def stop_strings(text: Continuation, stops: Sequence[str]) -> list[str]:
    """Return the strings at which a server may stop; before an answer, where white space is
    dropped, none that begins with white space."""
    begins_answer = text.call.transcript.begins_answer
    return [stop for stop in stops if not begins_answer or stop == stop.lstrip()]


def no_logprobs() -> NoLogprobs:
    """Return the error for a server that returned log-probabilities to the probe only."""
    return NoLogprobs(
        "expected log-probabilities of the first token, by names that the tokenizer has, as in the "
        "probe, got none; restart this service if the server was replaced"
    )


OPENAI: Final = OpenAI()
