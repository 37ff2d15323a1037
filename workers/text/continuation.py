"""What continues a transcript: one generation's text as its tokens come, where it ends, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from orchestrator.types import Author, Finish, Provenance, Segment, StopCriteria
from orchestrator.worker import Call, Delta
from workers.text.boundaries import StepEnd, begun
from workers.text.checks import answer_reserve, check_length
from workers.text.detokenizer import Detokenizer, Stop
from workers.text.origins import Origins
from workers.text.prompt import PromptRenderer


class Continuation:
    """One generation behind a transcript of `length` ids.

    A thought ends by "length" before the context is full: the rest is reserved for the answer.

    Args:
        prompts: those of the model that writes.
        stop_token_ids: the ids that end any text of that model.
        context: its context, in tokens.

    Raises:
        ContextLengthExceeded: the prefix does not fit.
    """

    def __init__(
        self,
        call: Call,
        criteria: StopCriteria,
        prompts: PromptRenderer,
        length: int,
        *,
        stop_token_ids: Collection[int],
        context: int,
    ) -> None:
        check_length(length + (criteria.max_tokens > 0), context)
        transcript, tokenizer = call.transcript, prompts.tokenizer
        thinking = not transcript.closed
        self._author, self._criteria, self._tokenizer = call.author, criteria, tokenizer
        self._stop_token_ids = prompts.ends(stop_token_ids, transcript)
        self._delimiters = [one.encode() for one in criteria.until if one]
        self._close_id = tokenizer.close_id if thinking else None
        self.ends = self._stop_token_ids
        """The ids that end this text."""
        if criteria.ignore_eos:
            self.ends &= {self._close_id}
        self.late_ends = self.ends - {self._close_id} if criteria.min_tokens > 0 else frozenset()
        """Of these, those that may not come before `min_tokens` tokens."""
        stops: list[Stop] = [(stop, "stop") for stop in criteria.stop]
        self._detokenizer = Detokenizer(
            tokenizer.pieces,
            tokenizer.encode,
            StepEnd(criteria.until, begun(transcript, criteria.until)),
            stops + tokenizer.stops(thinking),
            begins_answer=transcript.begins_answer,
            min_tokens=criteria.min_tokens,
            unfinished_bytes=prompts.unfinished(transcript),
            second_close=prompts.second_close(transcript, call.constraint),
        )
        reserved = answer_reserve(context) if thinking else 0
        self.max_tokens = min(criteria.max_tokens, context - length - reserved)
        """Those that fit both the criteria and the context; none if not above 0."""
        self.generated = 0

    def may_end(self, token: int) -> bool:
        """Whether the text may end with a token, by itself."""
        piece = self._tokenizer.pieces[token] if token < len(self._tokenizer.pieces) else b""
        return token in self.ends or any(one in piece for one in self._delimiters)

    def push(self, token: int, logprob: float, confidence: float) -> Finish | None:
        """Take a token; why the generation ends with it, or before it, if it does.

        Args:
            logprob: natural log of its probability.
            confidence: the likeliest token's probability, at temperature 1.
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

    def delta(self, *, ended: bool) -> Delta | None:
        """The text that has become final since the last time, if anything."""
        return self._detokenizer.end() if ended else self._detokenizer.take()

    def provenance(self, origins: Origins) -> Provenance:
        """Where the tokens of the segment came from; `origins` of all that were pushed."""
        text = self._detokenizer
        return origins.provenance(text.lengths, text.cut_at, self._tokenizer.pieces)

    def counted(self, drafted_at: Sequence[int], accepted_at: Sequence[int]) -> Provenance:
        """Where only counts are known of what was drafted, by place of a draft."""
        lengths = self._detokenizer.lengths
        return Provenance("?" * len(lengths), lengths, (), tuple(drafted_at), tuple(accepted_at))

    def segment(self, finish: Finish) -> Segment:
        """All of it."""
        self._detokenizer.end()
        return Segment(
            cast("Author", self._author),
            self._detokenizer.text,
            tuple(self._detokenizer.tokens),
            tuple(self._detokenizer.logprobs),
            self._tokenizer.hash,
            finish,
        )
