"""One generation's text, as its tokens come: where it ends, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, cast

from orchestrator.types import Author, Finish, Provenance, Segment, StopCriteria
from orchestrator.worker import Call, Delta
from workers.text.boundaries import StepEnd, begun
from workers.text.checks import answer_reserve, check_length
from workers.text.detokenizer import Detokenizer
from workers.text.ends import Ends, Stop
from workers.text.origins import Origins
from workers.text.prompt import PromptRenderer
from workers.text.retokenizer import Retokenizer

GOES_ON: Final[frozenset[Finish]] = frozenset({"until", "doubt", "length"})
"""Finishes after which a policy often asks the same model to continue."""


class Continuation:
    """One generation after the `ids` of a transcript.

    A thought ends by "length" before the context is full: the rest is reserved for the answer.

    Args:
        stop_token_ids: the ids that end any text of the model.
        context: the model's context length in tokens, if known.

    Raises:
        ContextLengthExceeded: the prefix does not fit.
    """

    prompt: int  # how many ids there are without `before`
    call: Call  # its transcript extended by `before`
    ids: list[int]  # of that transcript
    criteria: StopCriteria  # of what follows `before`
    max_tokens: int  # how many fit both these and the context; may be negative

    def __init__(
        self,
        call: Call,
        criteria: StopCriteria,
        prompts: PromptRenderer,
        ids: list[int],
        *,
        stop_token_ids: Collection[int],
        context: int | None,
    ) -> None:
        check_length(len(ids) + (criteria.max_tokens > 0), context)
        transcript, tokenizer = call.transcript, prompts.tokenizer
        self._call, self._criteria, self._prompts, self._ids = call, criteria, prompts, ids
        self._tokenizer, self.thinking = tokenizer, not transcript.closed
        self._stop_token_ids = prompts.ends(stop_token_ids, transcript)
        self._delimiters = [one.encode() for one in criteria.until if one]
        self._close_id = tokenizer.close_id if self.thinking else None
        marks = self.thinking and tokenizer.thinks
        self.closing = tokenizer.format.close.strip() if marks and tokenizer.format else ""
        """The text that ends a thought; empty in an answer, and if the model marks none."""
        self.ends = self._stop_token_ids
        if criteria.ignore_eos:
            self.ends &= {self._close_id}
        self.prompt, self._most = len(ids), criteria.max_tokens
        if context is not None:
            reserved = answer_reserve(context) if self.thinking else 0
            self._most = min(self._most, context - len(ids) - reserved)
        self.before = self._sign("", (), (), "length")
        """What was given out before the last `resume`."""
        self.bare = False  # whether the log-probabilities of its tokens are unknown
        self._begin(self._step())

    def _step(self) -> StepEnd:
        until = self._criteria.until
        return StepEnd(until, begun(self._call.transcript, until))

    def _begin(self, step: StepEnd) -> None:
        """Begin the text after `before`; `step` has read that."""
        count = len(self.before.tokens)
        self.call, self.criteria, self.ids = self._call, self._criteria, self._ids
        if count:
            extended = self._call.transcript.extend(self.before)
            self.call = replace(self._call, transcript=extended)
            self.criteria = self._criteria.after(count)
            self.ids = [*self._ids, *self.before.tokens]
        late = self.ends - {self._close_id}
        self.late_ends = late if self.criteria.min_tokens > 0 else frozenset()
        """Those of `ends` that may not come before `min_tokens` tokens."""
        self.max_tokens, self.generated = self._most - count, 0
        transcript, tokenizer = self.call.transcript, self._tokenizer
        stops: list[Stop] = [(stop, "stop") for stop in self.criteria.stop]
        self._text_ends = Ends(
            step,
            stops + tokenizer.stops(self.thinking),
            begins_answer=transcript.begins_answer,
            min_tokens=self.criteria.min_tokens,
            second_close=self._prompts.second_close(transcript, self.call.constraint),
        )
        unfinished = self._prompts.unfinished(transcript)
        self._detokenizer = Detokenizer(
            tokenizer.pieces, tokenizer.encode, self._text_ends, unfinished
        )
        self._source: Detokenizer | Retokenizer = self._detokenizer

    def resume(self, received: Delta | None = None) -> Finish | None:
        """Continue after what was given out, here or by a worker that is lost (`received`), and
        drop the rest; return why the text ends there, if it does (then only its end was lost)."""
        if (given := received or self._source.given).tokens:
            logprobs = () if self.bare else given.logprobs
            self.before += self._sign(given.text, given.tokens, logprobs, "length")
        step = self._step()
        ended = step.feed(self.before.text) is not None
        self._begin(step)
        if ended:
            return "until"
        return "length" if self.before.tokens and not self.criteria.max_tokens else None

    def read_text(self) -> None:
        """Expect text without ids from here on, and encode it."""
        if self._close_id is not None:
            self._text_ends.add(self.closing, "think_end")
        self._source = self._retokenizer = Retokenizer(self._tokenizer.encode, self._text_ends)

    def may_end(self, token: int) -> bool:
        """Whether a token may end the text."""
        piece = self._tokenizer.pieces[token] if token < len(self._tokenizer.pieces) else b""
        return token in self.ends or any(one in piece for one in self._delimiters)

    def push(self, token: int, logprob: float, confidence: float) -> Finish | None:
        """Take a token; return why the generation ends with it, or before it, if it does.

        `confidence` is the likeliest token's probability at temperature 1.
        """
        self.generated += 1
        if confidence < self._criteria.min_confidence:
            return "doubt"
        if token in self.ends:
            closes = token == self._close_id or self._detokenizer.closed()
            return "think_end" if closes else "eos"
        markup = token in self._stop_token_ids
        if finish := self._detokenizer.push(token, logprob, markup=markup):
            return finish
        return "length" if self.generated >= self.max_tokens else None

    def push_text(self, text: str) -> Finish | None:
        """Take text without ids; return why the generation ends in it, if it does."""
        return self._retokenizer.push(text)

    @property
    def is_bound(self) -> bool:
        """Whether some tokens may not be written in it that may be written after it."""
        return self.call.constraint is not None or bool(self.late_ends)

    def goes_on(self, finish: Finish) -> bool:
        """Whether the text is often continued if it ends so, by what it might have been itself."""
        return finish in GOES_ON and not self.is_bound

    def end_of_turn(self) -> Finish:
        """Take the end of the turn, which came without a token; return its finish."""
        return "think_end" if self._source.closed() else "eos"

    @property
    def text(self) -> str:
        """The text after `before` so far."""
        return self._source.text

    @property
    def count(self) -> int:
        """How many tokens that text has so far."""
        return len(self._source.tokens)

    def delta(self, *, ended: bool) -> Delta | None:
        """Return the text that has become final since the last delta, if any."""
        delta = self._source.end() if ended else self._source.take()
        return Delta(delta.text, delta.tokens) if delta and self.bare else delta

    def provenance(self, origins: Origins) -> Provenance:
        """Return the provenance of the segment, from the `origins` of all pushed tokens."""
        text = self._detokenizer
        return origins.provenance(text.lengths, text.cut_at, self._tokenizer.pieces)

    def counted(self, drafted_at: Sequence[int], accepted_at: Sequence[int]) -> Provenance:
        """Return the provenance if only counts are known, by place in the draft."""
        lengths = self._detokenizer.lengths
        return Provenance("?" * len(lengths), lengths, (), tuple(drafted_at), tuple(accepted_at))

    def segment(self, finish: Finish) -> Segment:
        """End the text and return all of it."""
        self._source.end()
        logprobs = () if self.bare else self._detokenizer.logprobs
        return self.before + self._sign(self.text, self._source.tokens, logprobs, finish)

    def _sign(
        self, text: str, tokens: Sequence[int], logprobs: Sequence[float], finish: Finish
    ) -> Segment:
        author = cast("Author", self._call.author)
        return Segment(author, text, tuple(tokens), tuple(logprobs), self._tokenizer.hash, finish)
