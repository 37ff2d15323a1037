"""What a request may spend, and how an accepted segment ends a phase.

Two caps (contract, "HTTP"): `max_tokens` bounds thought and answer together, the budget bounds the
accepted thought. A few tokens of `max_tokens` are kept back for the answer, so that a thought cut
short still leads to one (SpecReason 5.1 counts accuracy under a token budget the same way). Drafts
and judge calls are never charged here: they are counted in `metrics`.

Everything is a pure function of the trace, so a replay settles every trace as the live run did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.errors import InvalidRequest
from orchestrator.types import Limits, Segment, Span, Trace

ANSWER_RESERVE = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps of one request: `thought` tokens of thinking, `total` with the answer."""

    total: int
    thought: int
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, limits: Limits, budget: int | None = None) -> Budget:
        """The caps that `limits` and a policy's own `budget` (which goes first) amount to.

        Raises:
            InvalidRequest: a cap below one token.
        """
        if limits.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        cap = limits.budget if budget is None else budget
        if cap is not None and cap < 1:
            raise InvalidRequest("budget must be at least 1", param="budget")
        room = limits.max_tokens - min(ANSWER_RESERVE, limits.max_tokens // 2)
        return cls(limits.max_tokens, room if cap is None else min(cap, room), limits.stop)

    def left(self, trace: Trace) -> int:
        """Tokens that the phase the trace is in may still take."""
        if trace.closed:
            return max(0, self.total - trace.thought_tokens - trace.answer_tokens)
        return max(0, self.thought - trace.thought_tokens)

    def clip(self, trace: Trace, span: Span) -> Span:
        """The span, no longer than what is left; in the answer the caller's stop strings join."""
        tokens = max(0, min(span.max_tokens, self.left(trace)))
        if trace.closed and self.stop:
            return replace(span, max_tokens=tokens, stop=(*span.stop, *self.stop))
        return replace(span, max_tokens=tokens)

    def commit(self, trace: Trace, segment: Segment, asked: int | None = None) -> Trace:
        """The trace after an accepted segment; `asked` is the span it was given, if it fell short.

        A generation that stops at "length" short of its span (or with nothing at all) met the end
        of the worker's context: asking again would give nothing, so the phase ends there.
        """
        size = len(segment.tokens)
        exhausted = segment.finish == "length" and (size == 0 or (asked or 0) > size)
        after = trace.extend(segment) if segment.text or size else trace
        if trace.closed:
            if segment.finish in ("eos", "stop", "think_end"):
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

    def close(self, trace: Trace, forced: bool = False) -> Trace:
        """The trace with its thought ended; done at once where no token is left to answer with."""
        if trace.closed:
            return trace
        closed = replace(trace, closed=True, forced=forced)
        return closed if self.left(closed) else self.cut(closed)

    def cut(self, trace: Trace) -> Trace:
        """The trace ended here for want of room."""
        forced = trace.forced or not trace.closed
        return replace(trace, closed=True, forced=forced, done=True, finish="length")
