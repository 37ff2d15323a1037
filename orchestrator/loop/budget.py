"""A request's caps on tokens, and how an accepted segment ends a phase.

Two caps: the request's `max_tokens` bounds thought and answer together, the policy's `budget`
bounds the accepted thought. Each end that a model writes counts as a token, as with OpenAI. If
`max_tokens` cuts the thought, its end is given up for a short answer (`answer_room.py`), and the
request ends by "length". If a `budget` leaves the reserve for an answer, it closes the thought, and
the answer ends as usual (SpecReason 5.1 measures accuracy under such a budget). Drafts and judge
calls are not charged here: they count in `metrics`. A loop (`ending.py`) or the policy's
`soft_budget` may close a thought before its cap.

A model may continue its thought after such a close, and end it by itself. That text is neither an
answer (`Transcript.reply` leaves it out) nor a thought: it counts in `total` alone, and the answer
follows it. All is a pure function of the transcript: a replay ends each phase at the same token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orchestrator.loop.ending import BREAK, ends_step, loops
from orchestrator.loop.policy import Policy
from orchestrator.types import ENDED, Limits, Segment, StopCriteria, Transcript

AUTO = "auto"
"""A policy's `closing` that stands for the words that the model's family knows."""
NUDGE = Segment("policy", "Answer: ")
"""The beginning of an answer if a model ends its turn with a thought and no answer."""
LEAST_CALL = 16
"""The fewest tokens of a call that a soft budget ends: a shorter one is hardly worth a call."""


class Budget:
    """The caps of one request, by its policy and its limits.

    Attributes:
        thought: the most tokens of thinking.
        total: the most tokens of thought and answer together.
        reserve: tokens at the end of a thought that are given up for an answer if `total` cuts it.
        held_from: the thought's tokens before that end; `thought` if nothing is given up.
        words: what is written at the end of a thought that is closed by force, if anything.
    """

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._limits = limits
        self.total = limits.max_tokens
        self.thought = min(policy.budget or self.total, self.total)
        self.reserve = 0 if limits.ignore_eos else min(policy.answer_reserve, self.total // 2)
        self.held_from = min(self.thought, self.total - self.reserve)
        self.words = Segment("policy", policy.closing) if policy.closing else None
        share = policy.soft_budget
        self._soft = None if share is None else int(share * self.thought)
        form = limits.constraint
        # A nudge would break a form that the answer must match. Tools leave the text free, unless a
        # model must call one, but then no turn ends without a call.
        self._nudges = form is None or form.kind == "tools"
        # Whether the models share a chain that is the answer, so that a loop ends it too.
        self._shared = len(policy.workers) > 1 and form is None
        # Whether the request wants a length, not an answer: then no loop ends it.
        self._may_loop = limits.ignore_eos or limits.min_tokens > 0

    def know_words(self, known: str) -> None:
        """Take the words that the model's family knows, if those are asked for."""
        if self.words is not None and self.words.text == AUTO:
            self.words = Segment("policy", known) if known else None

    def left(self, transcript: Transcript) -> int:
        """Return the tokens that the transcript's phase may still take."""
        if transcript.closed:
            return max(0, self.total - spent(transcript))
        return max(0, self.thought - transcript.thought.tokens)

    def holds(self, transcript: Transcript) -> bool:
        """Return whether the next token of the thought may be given up."""
        return not transcript.closed and self.held_from <= transcript.thought.tokens < self.thought

    def overruns(self, transcript: Transcript, tokens: int) -> bool:
        """Return whether `tokens` more reach the cap, with too little left for an answer."""
        return (
            not transcript.closed
            and self.held_from < self.thought
            and transcript.thought.tokens + tokens >= self.thought
        )

    def certain(self, transcript: Transcript, tokens: int) -> int:
        """Return how many of the next `tokens` tokens can never be given up."""
        if not self.overruns(transcript, tokens):
            return tokens
        return max(0, self.held_from - transcript.thought.tokens)

    def watches(self, transcript: Transcript) -> bool:
        """Return whether the chain is one that may end before its cap."""
        return transcript.is_open and (transcript.thinking or self._shared)

    def due(self, transcript: Transcript) -> bool:
        """Return whether the chain ends after its last segment, by a loop or the soft budget."""
        if not self.watches(transcript):
            return False
        if not self._may_loop and loops(transcript.chain, transcript.thinking):
            return True
        return self._is_late(transcript) and ends_step(transcript.chain)

    def _is_late(self, transcript: Transcript) -> bool:
        """Return whether a thought is beyond its soft budget."""
        if self._soft is None or transcript.closed:
            return False
        return transcript.thought.tokens >= self._soft

    def clip(self, transcript: Transcript, criteria: StopCriteria) -> StopCriteria:
        """Return the criteria within what is left; in the answer with the caller's stop strings.

        A call that ends at no step ends at a soft budget; after that, every call ends at a step.
        """
        most, until = min(criteria.max_tokens, self.left(transcript)), criteria.until
        limits = self._limits
        if self._is_late(transcript):
            until = tuple(dict.fromkeys((*until, BREAK)))
        elif self._soft is not None and not (until or transcript.closed):
            most = min(most, max(self._soft - transcript.thought.tokens, LEAST_CALL))
        return replace(
            criteria,
            max_tokens=max(0, most),
            until=until,
            stop=(*criteria.stop, *limits.stop) if transcript.closed else criteria.stop,
            ignore_eos=limits.ignore_eos,
            min_tokens=max(0, limits.min_tokens - spent(transcript)),
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
            return self.close(after, forced=True) if self.due(after) else after
        if segment.finish in ENDED:
            # A model that ends its turn inside the thought has nothing more to think either.
            return self.close(after)
        if exhausted or self.left(after) == 0:
            own = not exhausted and self.held_from == self.thought < self.total
            return self.close(after, forced=True, finish="stop" if own else "length")
        return self.close(after, forced=True) if self.due(after) else after

    def _thinks_on(self, transcript: Transcript, segment: Segment) -> bool:
        """Return whether the answer so far was a thought, which the model now ends by itself.

        It is one if a cap had ended the thought, or if the model has written only blanks; not if
        the model ended such a thought just before.
        """
        if (transcript.reply + segment.text).strip():
            return self.may_think_on(transcript)
        return self._nudges and transcript.thinking and not transcript.reply_start

    def may_think_on(self, transcript: Transcript) -> bool:
        """Return whether the answer so far may turn out to be a thought."""
        return self._nudges and transcript.thinking and transcript.forced

    def _lacks_answer(self, transcript: Transcript, segment: Segment) -> bool:
        """Return whether a model that has thought ends its turn without an answer, too early."""
        return (
            self._nudges
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
        if forced and finish == "stop" and self.words is not None:
            transcript = transcript.extend(self.words)
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
