"""A request's caps on tokens, and how an accepted segment ends a phase.

Two caps: the request's `max_tokens` bounds thought and answer together, the policy's `budget`
bounds the accepted thought. Each end that a model writes counts as a token, as with OpenAI. If
`max_tokens` cuts the thought, its end is given up for a short answer (`answer_room.py`), and the
request ends by "length". If a `budget` leaves the reserve for an answer, it closes the thought, and
the answer ends as usual (SpecReason 5.1 measures accuracy under such a budget). Drafts and judge
calls are not charged here: they count in `metrics`. `ending.py` says when a thought is closed
before its cap.

A model may continue its thought after such a close, and end it by itself. That text is neither an
answer (`Transcript.reply` leaves it out) nor a thought: it counts in `total` alone, and the answer
follows it. All is a pure function of the transcript: a replay ends each phase at the same token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.errors import InvalidRequest
from orchestrator.loop.answer_room import AnswerRoom
from orchestrator.loop.ending import BREAK, Ending
from orchestrator.types import ENDED, Limits, Segment, StopCriteria, Transcript

NUDGE = Segment("policy", "Answer: ")
"""The beginning of an answer if a model ends its turn with a thought and no answer."""
LEAST_CALL = 16
"""The fewest tokens of a call that a soft budget ends: they hold at least one whole character."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps of one request: `thought` tokens of thinking, `total` with the answer.

    `reserve`: tokens at the end of a thought that are given up for an answer if `total` cuts it.
    `nudges`: whether `NUDGE` may begin an answer. `ending`: what closes a thought before its cap.
    """

    total: int
    thought: int
    stop: tuple[str, ...] = ()
    reserve: int = 0
    ignore_eos: bool = False
    min_tokens: int = 0
    nudges: bool = True
    ending: Ending = Ending()  # noqa: RUF009 it is frozen

    @classmethod
    def of(cls, limits: Limits, budget: int | None = None, reserve: int = 0) -> Budget:
        """Return the caps of a request's `limits`, and a policy's `budget` and `answer_reserve`.

        Raises:
            InvalidRequest: a negative cap, or a budget below one token.
        """
        if limits.max_tokens < 0:
            raise InvalidRequest("max_tokens must be at least 0", param="max_tokens")
        if budget is not None and budget < 1:
            raise InvalidRequest("budget must be at least 1", param="budget")
        total = limits.max_tokens
        thought = total if budget is None else min(budget, total)
        reserve = 0 if limits.ignore_eos else min(reserve, total // 2)
        # A nudge would break a form that the answer must match. Tools leave the text free, unless a
        # model must call one, but then no turn ends without a call.
        nudges = limits.constraint is None or limits.constraint.kind == "tools"
        return cls(
            total, thought, limits.stop, reserve, limits.ignore_eos, limits.min_tokens, nudges
        )

    def left(self, transcript: Transcript) -> int:
        """Return the tokens that the transcript's phase may still take."""
        if transcript.closed:
            return max(0, self.total - spent(transcript))
        return max(0, self.thought - transcript.thought.tokens)

    @property
    def room(self) -> AnswerRoom:
        """The end of a thought that is given up for an answer if a cap cuts it."""
        return AnswerRoom(min(self.thought, self.total - self.reserve), self.thought)

    def clip(self, transcript: Transcript, criteria: StopCriteria) -> StopCriteria:
        """Return the criteria within what is left; in the answer with the caller's stop strings.

        A call that ends at no step ends at a soft budget; after that, every call ends at a step.
        """
        most, until = min(criteria.max_tokens, self.left(transcript)), criteria.until
        ending = self.ending
        if ending.is_late(transcript):
            until = tuple(dict.fromkeys((*until, BREAK)))
        elif ending.soft is not None and not (until or transcript.closed):
            most = min(most, max(ending.soft - transcript.thought.tokens, LEAST_CALL))
        return replace(
            criteria,
            max_tokens=max(0, most),
            until=until,
            stop=(*criteria.stop, *self.stop) if transcript.closed else criteria.stop,
            ignore_eos=self.ignore_eos,
            min_tokens=max(0, self.min_tokens - spent(transcript)),
        )

    def clip_advice(self, transcript: Transcript, criteria: StopCriteria) -> StopCriteria:
        """Return the criteria within what is left, but for the reserve of an answer."""
        left = self.left(transcript) - self.reserve
        return replace(criteria, max_tokens=max(0, min(criteria.max_tokens, left)))

    def commit(
        self, transcript: Transcript, segment: Segment, allowed: int | None = None
    ) -> Transcript:
        """Return the transcript after an accepted segment, which may end its phase, as a cap may.

        `allowed`: the tokens that its generation was allowed, if it made fewer. A generation that
        stops at "length" with fewer tokens than allowed (or none at all) met the end of the
        worker's context, or gave its last ones up for the answer: the phase ends there.
        """
        if transcript.closed and segment.finish == "think_end":
            if self._thinks_on(transcript, segment):
                after = transcript.extend(segment)
                after = replace(after, ends=after.ends + 1)
                return after if self.left(after) else replace(after, done=True, finish="length")
            segment = replace(segment, finish="eos")
        size = len(segment.tokens)
        exhausted = segment.finish == "length" and (size == 0 or (allowed or 0) > size)
        after = transcript.extend(segment) if segment.text or size else transcript
        if transcript.closed:
            if segment.finish in ("eos", "stop"):
                if self._lacks_answer(after, segment):
                    return replace(after.extend(NUDGE), forced=True)
                ends = after.ends + (segment.finish != "stop")
                return replace(after, done=True, ends=ends)
            if exhausted or self.left(after) == 0:
                return replace(after, done=True, finish="length")
            return self.close(after, forced=True) if self.ending.due(after) else after
        if segment.finish in ENDED:
            # A model that ends its turn inside the thought has nothing more to think either.
            return self.close(after)
        if exhausted or self.left(after) == 0:
            own = not exhausted and self.room.begins == self.thought < self.total
            return self.close(after, forced=True, finish="stop" if own else "length")
        return self.close(after, forced=True) if self.ending.due(after) else after

    def _thinks_on(self, transcript: Transcript, segment: Segment) -> bool:
        """Return whether the answer so far was a thought, which the model now ends by itself.

        It is one if a cap had ended the thought, or if the model has written only blanks; not if
        the model ended such a thought just before.
        """
        if (transcript.reply + segment.text).strip():
            return self.may_think_on(transcript)
        return self.nudges and transcript.thinking and not transcript.reply_start

    def may_think_on(self, transcript: Transcript) -> bool:
        """Return whether the answer so far may turn out to be a thought."""
        return self.nudges and transcript.thinking and transcript.forced

    def _lacks_answer(self, transcript: Transcript, segment: Segment) -> bool:
        """Return whether a model that has thought ends its turn without an answer, too early."""
        return (
            self.nudges
            and transcript.thinking
            and segment.finish != "stop"
            and not transcript.thought.is_blank
            and not transcript.reply.strip()
            and self.left(transcript) > 0
        )

    def close(
        self,
        transcript: Transcript,
        forced: bool = False,
        finish: Literal["stop", "length"] = "stop",
    ) -> Transcript:
        """Return the transcript with its chain ended: the answer follows, if there is a thought.

        It is done at once if no token is left for an answer. `finish` says why the thought ended:
        "length" if `max_tokens` or a context cut it. A chain that is the answer ends by "length".
        """
        if transcript.done or (transcript.closed and transcript.thinking):
            return transcript
        if not transcript.thinking:
            return replace(transcript, forced=forced, done=True, finish="length")
        if forced and finish == "stop" and self.ending.words is not None:
            transcript = transcript.extend(self.ending.words)
        ends = transcript.ends + (not forced)
        closed = replace(transcript, closed=True, forced=forced, finish=finish, ends=ends)
        return closed if self.left(closed) else self.cut(closed)

    def cut(self, transcript: Transcript) -> Transcript:
        """Return the transcript ended here, because no token is left."""
        forced = transcript.forced or not transcript.closed
        return replace(transcript, closed=True, forced=forced, done=True, finish="length")


def spent(transcript: Transcript) -> int:
    """Return the tokens of a transcript: its text's, and the ends that a model wrote itself."""
    return transcript.thought.tokens + transcript.answer.tokens + transcript.ends
