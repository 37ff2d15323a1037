"""The pure half of the step loop: a policy's script, the transcript it builds, the events it
causes.

Nothing here waits. `solve` hands a PolicyRunner the answers of live workers, a replay those of a
recording; what follows from an answer is the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    Spent,
    Unsupported,
    WorkerError,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import (
    REST,
    Accept,
    Action,
    Close,
    Generate,
    Reject,
    Script,
    WorkerName,
    Write,
)
from orchestrator.loop.answer_room import HeldEnd, Shown
from orchestrator.loop.budget import NUDGE, Budget
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    PromptsRead,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.loop.spending import Spending
from orchestrator.loop.stop_strings import StopStrings
from orchestrator.types import (
    Generation,
    Limits,
    Message,
    Segment,
    Step,
    StopCriteria,
    Transcript,
)

CUT_AMONG = 8  # latest drafts of which a segment may be one end
APART = "\n\n"
"""In a stream, between a thought that continued after its close, and was shown, and the answer."""
MAX_IDLE = 256
"""Actions in a row that add nothing to the transcript before a policy counts as stuck."""


class PolicyRunner:
    """One policy at work: `next_action`, then `on_result`, until `next_action` returns None.

    Every event of the request is folded into `response` here, once.
    """

    def __init__(
        self,
        policy: Policy,
        messages: Sequence[Message],
        limits: Limits,
        response: ResponseAccumulator | None = None,
    ) -> None:
        self.policy = policy
        self.budget = Budget.of(limits, policy.budget, policy.answer_reserve)
        self.spending = Spending.of(policy, limits)
        self.transcript = _beginning(messages, limits)
        self.response = ResponseAccumulator() if response is None else response
        self._script = policy.solve(self.transcript)
        self._continues = self.transcript.closed and not self.transcript.begins_answer
        self._stops = StopStrings(limits.stop, begun=self._continues)
        self._held_tokens = 0  # of text that the stop strings hold back
        self._end = HeldEnd(self.budget.room)
        self._complete = limits.complete
        self._reply: Any = None
        self._drafts: dict[Segment, Generation] = {}
        self._idle = 0
        self._outgrown = False  # a context is full, which the policy did not provide for
        self._rationed = False  # the action was changed to what may be spent

    def prefills(self) -> list[Generate]:
        """Return the first actions of every request: each worker reads the prompt."""
        return [
            Generate(name, self.transcript, StopCriteria(0)) for name in sorted(self.policy.called)
        ]

    def begin(self, thinks: bool) -> None:
        """Start the policy: on an answer if no model marks its thought."""
        if not thinks:
            self.transcript = self.transcript.without_thought()
            self._script = self.policy.solve(self.transcript)
        self.response.thinking = self.transcript.thinking
        self.response.continues = self._continues

    def next_action(self) -> Action[Any] | None:
        """Return what the policy yields, given the last result; None when it has returned.

        A failure is thrown in at the place that yielded the action.

        Raises:
            BatonError: the policy returned before the answer ended.
            WorkerError: nothing may be missing, and a worker died in mid-text.
            Exception: a failure that the policy did not catch.
        """
        reply, self._reply = self._reply, None
        action: Action[Any] | None = None
        try:
            if isinstance(reply, BaseException):
                action = self._affordable(self._script.throw(reply))
            else:
                action = self._affordable(self._script.send(reply))
        except StopIteration:
            if not self.transcript.done:
                name = type(self.policy).__name__
                raise BatonError(
                    f"policy {name} returned a transcript that is not done: "
                    "it must continue until `transcript.done`"
                ) from None
        except ContextLengthExceeded:
            # The prompt did fit, so this transcript outgrew a context: the worker that has room
            # answers; if none has, the transcript is cut, not refused.
            if len(self.policy.called) > 1 and not self._outgrown:
                self._outgrown = True
                self._script = _answered(self.transcript, sorted(self.policy.called))
                return self.next_action()
            self.transcript = self.budget.cut(self.transcript)
        self.response.begin(action)
        if self._complete and self.response.missing is not None:
            raise self.response.missing
        return action

    def _affordable(self, action: Action[Any]) -> Action[Any]:
        """Return what the policy yields, or yields next if that costs more than may be spent."""
        self._rationed = False
        while self.transcript.is_open and self.spending.capped:
            try:
                left = self.spending.left(self.response.totals())
                allowed = self.spending.allow(action, left)
            except Spent as error:
                self._count_idle()
                action = self._script.throw(error)
            else:
                self._rationed = allowed is not action
                return allowed
        return action

    def on_result(self, item: PromptsRead | TextDelta | ActionCompleted) -> Iterator[Event]:
        """Take in what the executor gives; yield the events it causes, last `item` itself.

        Raises:
            BatonError: the policy broke a rule of the protocol, or makes no progress.
        """
        if isinstance(item, PromptsRead):
            yield from self._add_prefills(item.results)
        elif isinstance(item, ActionCompleted):
            yield from self._add_result(item)
        elif self._end.room.holds(self.transcript):
            self._end.hold(self.transcript, [item])
        else:
            yield from map(self.response.add, self._shown(item))

    def _add_prefills(self, prefilled: Sequence[ActionCompleted]) -> Iterator[ActionCompleted]:
        """Count the prefills, and see that the models can continue each other's text."""
        answers = [result.answer for result in prefilled if isinstance(result.answer, Generation)]
        vocabularies = {answer.segment.tokenizer for answer in answers}
        # A worker that is down, or does not say, shows it later.
        if self.policy.one_vocabulary and len(vocabularies - {""}) > 1:
            raise Unsupported(
                f"{type(self.policy).__name__} hands token ids from one model to the other, "
                "and the tokenizers of this pair differ"
            )
        formats = {answer.calls for answer in answers} - {None}
        if len(formats) > 1:
            raise Unsupported(
                "tools: the models of this pair write calls of tools in different forms"
            )
        self.response.calls = next(iter(formats), None)
        yield from map(self.response.add, prefilled)

    def _add_result(self, result: ActionCompleted) -> Iterator[Event]:
        """Change the transcript as an action's result says, and show what may be shown."""
        before, action = self.transcript, result.action
        draft = action.segment if isinstance(action, Accept) else None
        caused = [*self._apply(result)]
        if self.transcript is before:
            self._count_idle()
        else:
            self._idle = 0
        events, given_up = self._end.settle(before, self.transcript, caused, draft)
        if given_up is not None:
            for each in given_up.drafts:
                self.response.give_up(each)
            self.transcript = self._reply = self.budget.close(given_up.start, True, "length")
        self.response.thinks_on = self.budget.may_think_on(self.transcript)
        yield from map(self.response.add, events)
        if self.transcript.reply_start > before.reply_start:
            self.response.restart_answer()
        if self.transcript.done and not before.done:
            yield from self.rest_of_text()
        yield self.response.add(result)

    def _apply(self, result: ActionCompleted) -> Iterator[Shown]:
        """Change the transcript as the result says, and prepare the policy's reply."""
        action, answer = result.action, result.answer
        self._reply = answer
        if isinstance(answer, BaseException):
            return
        if isinstance(action, Write | Accept | Close):
            self._check_extends(action.transcript)
        match action:
            case Generate():
                self._drafts[answer.segment] = replace(answer, ms=result.ms)
            case Write():
                yield from self._written(action, replace(answer, ms=result.ms))
            case Accept(_, segment, score):
                if segment.text:
                    size = len(segment.tokens)
                    delta = TextDelta(segment.author, self.phase, segment.text, size)
                    yield from self._shown(delta)
                yield self._step(segment, self._made(segment), accepted=True, score=score)
                yield from self._commit(segment)
            case Reject(segment, score):
                yield self._step(segment, self._made(segment), accepted=False, score=score)
            case Close(_, forced, finish):
                self.transcript = self._reply = self.budget.close(self.transcript, forced, finish)

    def _written(self, write: Write, made: Generation) -> Iterator[Shown]:
        """Accept what a Write has made; its text has been shown."""
        before, segment = self.transcript, made.segment
        allowed = self.budget.clip(before, write.criteria).max_tokens
        if self._only_half(write, made, allowed):
            self._reply = before
            return
        # Half a character at the end is made and dropped: then the context is not full. What was
        # made up to max_tokens and not shown is given up.
        short = made.usage.generated < allowed or self._end.room.certain(before, allowed) < allowed
        if segment.text or segment.tokens:
            yield self._step(segment, made, accepted=True)
        yield from self._commit(segment, allowed if short else None)

    def _commit(self, segment: Segment, allowed: int | None = None) -> Iterator[Shown]:
        """Accept a segment; what the budget puts after it is shown too."""
        after = self.budget.commit(self.transcript, segment, allowed)
        if calls := self._calls_in_thought(segment):
            before = self.transcript.extend(segment)
            after = replace(before, closed=True, ends=before.ends + 1)
            self.transcript = self._reply = replace(after.extend(calls), done=True)
            yield from self._shown(TextDelta(calls.author, self.phase, calls.text), early=True)
            return
        if self._stops.found:
            after = replace(after, done=True, finish=self.transcript.finish)
        thought_on = after.reply_start > self.transcript.reply_start
        apart = thought_on and (self.transcript.reply + segment.text).strip()
        nudged = not after.done and after.last is NUDGE
        self.transcript = self._reply = after
        if thought_on or nudged:
            # A caller's stop string is looked for in what models write from here on.
            if (rest := self._stops.end()).strip():
                yield TextDelta(segment.author, self.phase, rest)
            self._stops = StopStrings(self.budget.stop)
        if apart:
            yield TextDelta("policy", self.phase, APART)
        if nudged:
            yield from self._shown(TextDelta(NUDGE.author, self.phase, NUDGE.text), early=True)
            yield self._step(NUDGE, None, accepted=True)

    def _calls_in_thought(self, last: Segment) -> Segment | None:
        """Return the whole calls of tools that a thought ends with, as the answer, if the model
        ends its turn there and has no other answer. Their tokens count in the thought."""
        transcript = self.transcript
        if last.finish != "eos" or not transcript.thinking:
            return None
        thought = transcript.thought.text()
        if not transcript.closed:
            thought += last.text
        elif (transcript.reply + last.text).strip():
            return None
        text = self.response.find_calls(thought)
        return Segment(last.author, text, finish="eos") if text else None

    def _shown(self, delta: TextDelta, *, early: bool = False) -> Iterator[TextDelta]:
        """Yield as much of a text as the client may see, up to a stop string.

        `early`: none may begin in it.
        """
        if delta.phase == "thought":
            yield delta
            return
        self._held_tokens += delta.tokens
        # The worker itself looked through what is too early for a stop string.
        written = sum(self.response.shown.values()) + self.transcript.ends
        early |= written < self.budget.min_tokens
        if text := (self._stops.skip if early else self._stops.feed)(delta.text):
            tokens, self._held_tokens = self._held_tokens, 0
            yield replace(delta, text=text, tokens=tokens)

    def rest_of_text(self) -> Iterator[Shown]:
        """Yield what was held back until the answer has ended, once."""
        yield from map(self.response.add, self._end.release())
        last = self.transcript.last
        if last is not None and (rest := self._stops.end()):
            yield self.response.add(TextDelta(last.author, self.phase, rest))

    def complete(self, total_ms: float) -> RequestCompleted:
        """Return the last event; `total_ms` is the request's wall time."""
        response = self.response
        metrics = response.totals(total_ms)
        return response.add(RequestCompleted(self.transcript, tuple(response.steps), metrics))

    def close(self) -> None:
        """Close the script: a policy's own `finally` runs."""
        self._script.close()

    @property
    def stopped(self) -> bool:
        """Whether a stop string of the caller's was found: nothing is shown after it."""
        return self._stops.found

    @property
    def phase(self) -> Literal["thought", "answer"]:
        return "answer" if self.transcript.closed else "thought"

    def _only_half(self, write: Write, made: Generation, allowed: int) -> bool:
        """Return whether half a character was all that the large model could still spend.

        Not if the context or the budget left no more than that: then the phase is over.
        """
        segment = made.segment
        return (
            self._rationed
            and write.worker == "large"
            and segment.finish == "length"
            and not segment.tokens
            and 0 < made.usage.generated == allowed < self.budget.left(self.transcript)
        )

    def _count_idle(self) -> None:
        self._idle += 1
        if self._idle > MAX_IDLE:
            name = type(self.policy).__name__
            raise BatonError(
                f"policy {name} makes no progress: {self._idle} actions in a row added nothing "
                "to the transcript"
            )

    def _check_extends(self, transcript: Transcript) -> None:
        # What was streamed cannot be taken back: only the transcript that the client saw can grow.
        if transcript is not self.transcript and transcript != self.transcript:
            raise BatonError("a policy may only extend the transcript that it was last given")
        if transcript.done:
            raise BatonError("a policy may not extend a transcript whose answer has ended")

    def _made(self, segment: Segment) -> Generation | None:
        """Return the generation that made a segment, whole or as one end of a longer draft.

        An end has its share by tokens of the draft's time.
        """
        if segment in self._drafts or not segment.tokens:
            return self._drafts.get(segment)
        count = len(segment.tokens)
        for draft in islice(reversed(self._drafts.values()), CUT_AMONG):
            ids = draft.segment.tokens
            if draft.segment.author == segment.author and segment.tokens in (
                ids[:count],
                ids[-count:],
            ):
                return replace(draft, ms=draft.ms * count / len(ids), provenance=None)
        return None

    def _step(
        self,
        segment: Segment,
        made: Generation | None,
        *,
        accepted: bool,
        score: float | None = None,
    ) -> StepCompleted:
        """Return a segment as users see it; `made`: the generation that made it, if any."""
        tokens, ms = len(segment.tokens), 0.0 if made is None else made.ms
        step = Step(segment.author, segment.text, accepted, tokens, ms, score, self.phase)
        return StepCompleted(step, None if made is None else made.provenance)


def _answered(transcript: Transcript, names: Iterable[WorkerName]) -> Script[None]:
    """End the thought, and let the first worker with room write the rest; if one fails, the next.

    Raises:
        WorkerError: one failed with no answer there, or in the middle of it, and no other
            continued.
        ContextLengthExceeded: none of them has room.
    """
    if transcript.is_open and transcript.thinking:
        transcript = yield from Close(transcript, forced=True, finish="length")
    before = transcript
    failure: WorkerError | None = None
    for name in names:
        try:
            while not transcript.done:
                transcript = yield from Write(name, transcript, REST)
            return
        except ContextLengthExceeded:
            continue
        except WorkerError as error:
            failure = error
    if failure is not None and (before.answer.is_blank or transcript is not before):
        raise failure
    raise ContextLengthExceeded("no worker has room for the rest of the transcript")


def _beginning(messages: Sequence[Message], limits: Limits) -> Transcript:
    """Return a request's transcript; an assistant's message at the end is an answer to continue."""
    if messages and messages[-1].role == "assistant":
        begun = Segment("policy", messages[-1].content)
        return Transcript(tuple(messages[:-1])).without_thought().extend(begun)
    transcript = Transcript(tuple(messages))
    return transcript if limits.thinking else transcript.without_thought()
