"""Room for an answer at the end of a thought that `max_tokens` cuts.

The last `reserve` tokens of a thought are held back until the thought has ended. If a model ended
it, they are shown. If `max_tokens` cut it, they are given up: the transcript is again what it was
before them, and a short answer takes their place. So no text that was shown is taken back, and a
cap changes nothing if the uncapped output fits in it. There is one exception: the cap may shorten a
draft that would have been rejected at full length.

- `Budget.held_from` says where that end begins. It depends on the request alone, so a replay gives
  up the same text.
- `HeldEnd` holds back the events of that end.
- `generated` has a worker generate that end in a separate call, so it begins at a whole token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from orchestrator.loop.budget import Budget
from orchestrator.loop.events import StepCompleted, TextDelta
from orchestrator.types import (
    ENDED,
    Generation,
    Segment,
    StopCriteria,
    Transcript,
    joined_provenance,
)
from orchestrator.worker import Delta

Shown = TextDelta | StepCompleted
GivenUp = tuple[Transcript, list[Segment]]
"""The end of a thought that a cap cut: the transcript before it, and its accepted drafts."""
Stream = AsyncGenerator[Delta | Generation, None]


@dataclass(slots=True)
class HeldEnd:
    """The events that are held back, with their accepted drafts."""

    budget: Budget
    events: list[Shown] = field(default_factory=list)
    drafts: list[Segment] = field(default_factory=list)
    start: Transcript | None = None
    """The transcript before them; None while nothing is held."""

    def settle(
        self, before: Transcript, after: Transcript, events: list[Shown], draft: Segment | None
    ) -> tuple[list[Shown], GivenUp | None]:
        """Return the events that can be shown after an action, and the end that it gives up.

        `draft` is what the action accepted. The steps of an end that is given up are rejected.
        """
        if not after.closed:
            beyond = draft is not None and after.thought.tokens > self.budget.held_from
            if not (self.budget.holds(before) or beyond):
                return events, None
            self.hold(before, events, draft)
            return [], None
        start = self.start or before
        drafts = self.drafts if draft is None else [*self.drafts, draft]
        events = self.release() + events
        size = 0 if draft is None else len(draft.tokens)
        cut = not before.closed and after.forced and after.finish == "length"
        if not cut or not (self.budget.holds(before) or self.budget.overruns(before, size)):
            return events, None
        rejected: list[Shown] = [
            replace(event, step=replace(event.step, accepted=False, given_up=event.step.accepted))
            for event in events
            if isinstance(event, StepCompleted)
        ]
        return rejected, (start, drafts)

    def hold(self, before: Transcript, events: list[Shown], draft: Segment | None = None) -> None:
        """Hold back events that follow a transcript, or that follow events already held."""
        self.start = self.start or before
        self.events += events
        if draft is not None:
            self.drafts.append(draft)

    def release(self) -> list[Shown]:
        """Return the held events, and hold none."""
        events, self.events, self.drafts, self.start = self.events, [], [], None
        return events


async def generated(
    budget: Budget,
    transcript: Transcript,
    criteria: StopCriteria,
    generate: Callable[[Transcript, StopCriteria, bool], Stream],
) -> Stream:
    """Yield a worker's stream. `generate(transcript, criteria, streams)` calls the worker.

    Tokens that may be given up are generated in a separate call, which is not streamed.
    """
    certain = budget.certain(transcript, criteria.max_tokens)
    first: Generation | None = None
    if certain or not criteria.max_tokens:
        call = generate(transcript, replace(criteria, max_tokens=certain), True)
        async with aclosing(call) as stream:
            async for item in stream:
                if isinstance(item, Generation):
                    first = item
                else:
                    yield item
        if first is None:
            return
        cut = first.segment.finish == "length" and first.usage.generated >= certain
        if certain == criteria.max_tokens or not cut:
            yield first
            return
        transcript = transcript.extend(first.segment)
        criteria = criteria.after(len(first.segment.tokens))
    async with aclosing(generate(transcript, criteria, False)) as stream:
        async for item in stream:
            if isinstance(item, Generation):
                # Even if a step ends with the very last token, no room is left for an answer.
                full = item.usage.generated >= criteria.max_tokens
                if full and item.segment.finish not in ENDED:
                    nothing = Segment(item.segment.author, "", finish="length")
                    nothing = replace(nothing, tokenizer=item.segment.tokenizer)
                    item = replace(item, segment=nothing, provenance=None)
                yield item if first is None else _joined(first, item)


def _joined(first: Generation, rest: Generation) -> Generation:
    """Join the generations of two calls."""
    begin, end, usage, more = first.segment, rest.segment, first.usage, rest.usage
    return replace(
        first,
        segment=begin + end,
        usage=replace(
            usage,
            generated=usage.generated + more.generated,
            passes=usage.passes + more.passes,
            adopted=usage.adopted + more.adopted,
        ),
        ms=first.ms + rest.ms,
        provenance=joined_provenance(begin, first.provenance, end, rest.provenance),
    )
