"""What a request may spend, and how an accepted segment ends a phase.

Two caps: the request's `max_tokens` bounds thought and answer together, the policy's `budget` the
accepted thought (where there is none, it bounds nothing). A few tokens of `max_tokens` are kept
back for the answer, so that a thought cut short still leads to one (SpecReason 5.1 counts accuracy
under a token budget the same way). Drafts and judge calls are never charged here: they are counted
in `metrics`.

Everything is a pure function of the transcript, so a replay ends every phase where the live run
did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.errors import InvalidRequest
from orchestrator.types import Limits, Segment, StopCriteria, Transcript

ANSWER_RESERVE = 64
NUDGE = Segment("policy", "Answer: ")
"""The beginning of an answer where a model ends its turn with a thought and no answer."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps of one request: `thought` tokens of thinking, `total` with the answer."""

    total: int
    thought: int
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, limits: Limits, budget: int | None = None) -> Budget:
        """The caps of a request's `limits` and a policy's own `budget`.

        Raises:
            InvalidRequest: a cap below one token.
        """
        if limits.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        if budget is not None and budget < 1:
            raise InvalidRequest("budget must be at least 1", param="budget")
        most = limits.max_tokens - min(ANSWER_RESERVE, limits.max_tokens // 2)
        thought = most if budget is None else min(budget, most)
        return cls(limits.max_tokens, thought, limits.stop)

    def left(self, transcript: Transcript) -> int:
        """Tokens that the phase the transcript is in may still take."""
        if transcript.closed:
            return max(0, self.total - transcript.thought.tokens - transcript.answer.tokens)
        return max(0, self.thought - transcript.thought.tokens)

    def clip(self, transcript: Transcript, criteria: StopCriteria) -> StopCriteria:
        """The criteria with `max_tokens` no more than what is left; in the answer the caller's
        stop strings are added."""
        tokens = max(0, min(criteria.max_tokens, self.left(transcript)))
        if transcript.closed and self.stop:
            return replace(criteria, max_tokens=tokens, stop=(*criteria.stop, *self.stop))
        return replace(criteria, max_tokens=tokens)

    def commit(
        self, transcript: Transcript, segment: Segment, allowed: int | None = None
    ) -> Transcript:
        """The transcript after an accepted segment, its phase ended where the segment or a cap
        ends it. `allowed`: the tokens that its generation was allowed, where it made fewer.

        A generation that stops at "length" with fewer tokens than allowed (or none at all) met the
        end of the worker's context: another would give nothing, so the phase ends there.
        """
        size = len(segment.tokens)
        exhausted = segment.finish == "length" and (size == 0 or (allowed or 0) > size)
        after = transcript.extend(segment) if segment.text or size else transcript
        if transcript.closed:
            if segment.finish in ("eos", "stop", "think_end"):
                if self._lacks_answer(after, segment):
                    return replace(after.extend(NUDGE), forced=True)
                return replace(after, done=True, finish="stop")
            if exhausted or self.left(after) == 0:
                return replace(after, done=True, finish="length")
            return after
        if segment.finish in ("think_end", "eos"):
            # A model that ends its turn inside the thought has nothing more to think either.
            return self.close(after)
        if exhausted or self.left(after) == 0:
            return self.close(after, forced=True)
        return after

    def _lacks_answer(self, transcript: Transcript, segment: Segment) -> bool:
        """Whether a model has thought, and ends its turn before it has answered anything."""
        return (
            transcript.thinking
            and segment.finish != "stop"
            and not transcript.thought.is_blank
            and transcript.answer.is_blank
            and self.left(transcript) > 0
        )

    def close(self, transcript: Transcript, forced: bool = False) -> Transcript:
        """The transcript with its chain ended: what follows is the answer, or nothing where there
        is no thought; done at once where no token is left to answer with."""
        if transcript.done or (transcript.closed and transcript.thinking):
            return transcript
        if not transcript.thinking:
            return replace(transcript, forced=forced, done=True, finish="length")
        closed = replace(transcript, closed=True, forced=forced)
        return closed if self.left(closed) else self.cut(closed)

    def cut(self, transcript: Transcript) -> Transcript:
        """The transcript ended here, because no token is left."""
        forced = transcript.forced or not transcript.closed
        return replace(transcript, closed=True, forced=forced, done=True, finish="length")
