"""The half of the step loop without I/O: a policy's script, its transcript, its events.

Nothing here waits: `solve` passes the workers' answers to a PolicyRunner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from orchestrator.errors import BatonError, ContextLengthExceeded, Spent, Unsupported, WorkerError
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import (
    REST,
    Accept,
    Action,
    Advise,
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
from orchestrator.types import Generation, Limits, Message, Segment, Step, StopCriteria, Transcript

CUT_AMONG = 8  # latest drafts, among which the one that a segment is a part of is looked for
APART = "\n\n"
"""Separates in a stream the answer from a thought that continued after its close."""
MAX_IDLE = 256
"""Actions in a row that add nothing to the transcript before a policy counts as stuck."""


class PolicyRunner:
    """Runs one policy: call `next_action`, then `on_result`, until `next_action` returns None.

    It adds every event of the request to `response`, once.
    """

    def __init__(
        self,
        policy: Policy,
        messages: Sequence[Message],
        limits: Limits,
        response: ResponseAccumulator | None = None,
    ) -> None:
        self.policy, self._limits = policy, limits
        self.budget = Budget(policy, limits)
        self.spending = Spending.of(policy, limits)
        self.transcript = beginning(messages, limits)
        self.response = ResponseAccumulator() if response is None else response
        self._script = policy.solve(self.transcript)
        self._continues = self.transcript.closed and not self.transcript.begins_answer
        self._stops = StopStrings(limits.stop, begun=self._continues)
        self._held_tokens = 0  # of text that the stop strings hold back
        self._end = HeldEnd(self.budget)
        self._reply: Any = None
        self._drafts: dict[Segment, Generation] = {}
        self._idle = 0
        self._outgrown = False  # a context is full, and the policy did not catch that

    def prefills(self) -> list[Generate]:
        """Return the first actions of every request: each worker reads the prompt."""
        return [
            Generate(name, self.transcript, StopCriteria(0)) for name in sorted(self.policy.called)
        ]

    def begin(self, thinks: bool) -> None:
        """Start the policy, without a thought if no model marks its thought (`thinks`)."""
        if not thinks:
            self.transcript = self.transcript.without_thought()
            self._script = self.policy.solve(self.transcript)
        self.response.thinking = self.transcript.thinking
        self.response.continues = self._continues

    def next_action(self) -> Action[Any] | None:
        """Send the last result to the policy; return its next action, None after the last.

        A failure is thrown in at the place that yielded the action.

        Raises:
            BatonError: the policy returned before the answer ended.
            WorkerError: the request must be complete, and a worker died in mid-text.
            Exception: a failure that the policy did not catch.
        """
        reply, self._reply = self._reply, None
        resume = self._script.throw if isinstance(reply, BaseException) else self._script.send
        action: Action[Any] | None = None
        try:
            action = self._affordable(resume(reply))
        except StopIteration:
            if not self.transcript.done:
                raise BatonError(
                    f"policy {type(self.policy).__name__} returned a transcript that is not done: "
                    "it must continue until `transcript.done`"
                ) from None
        except ContextLengthExceeded:
            # The prompt did fit, so the transcript has outgrown a context: a worker with room
            # answers; without one, the transcript is cut, not refused.
            if len(self.policy.called) > 1 and not self._outgrown:
                self._outgrown = True
                self._script = _answered(self.transcript, sorted(self.policy.called))
                return self.next_action()
            self.transcript = self.budget.cut(self.transcript)
        self.response.begin(action)
        self._check_complete(self.response.missing)
        return action

    def _affordable(self, action: Action[Any]) -> Action[Any]:
        """Return the action within the spending caps, or the policy's next one if it is beyond."""
        while self.transcript.is_open and self.spending.capped:
            try:
                return self.spending.allow(action, self.spending.left(self.response.totals()))
            except Spent as error:
                self._count_idle()
                action = self._script.throw(error)
        return action

    def on_result(self, item: PromptsRead | TextDelta | ActionCompleted) -> Iterator[Event]:
        """Process an item of the executor; yield the events that it causes, `item` last.

        Raises:
            BatonError: the policy broke a rule of the protocol, or makes no progress.
        """
        if isinstance(item, PromptsRead):
            yield from self._add_prefills(item.results)
        elif isinstance(item, ActionCompleted):
            yield from self._add_result(item)
        elif self.budget.holds(self.transcript):
            self._end.hold(self.transcript, [item])
        else:
            yield from map(self.response.add, self._shown(item))

    def _add_prefills(self, prefilled: Sequence[ActionCompleted]) -> Iterator[ActionCompleted]:
        """Count the prefills, and check that the models can continue each other's text."""
        answers = [result.answer for result in prefilled if isinstance(result.answer, Generation)]
        vocabularies = {answer.segment.tokenizer for answer in answers}
        # If a worker is down or does not name its vocabulary, later calls raise.
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
        known = next((answer.closing for answer in answers if answer.closing), "")
        self.budget.know_words(known)
        for result in prefilled:
            yield self.response.add(result)
            self._check_complete(result.answer)

    def _add_result(self, result: ActionCompleted) -> Iterator[Event]:
        """Change the transcript by an action's result, and yield the text that may be shown."""
        before, action = self.transcript, result.action
        draft = action.segment if isinstance(action, Accept) else None
        caused = [*self._apply(result)]
        if self.transcript is before:
            self._count_idle()
        else:
            self._idle = 0
        events, given_up = self._end.settle(before, self.transcript, caused, draft)
        if given_up is not None:
            start, drafts = given_up
            for each in drafts:
                self.response.give_up(each)
            self.transcript = self._reply = self.budget.close(start, True, "length")
        self.response.thinks_on = self.budget.may_think_on(self.transcript)
        yield from map(self.response.add, events)
        if self.transcript.reply_start > before.reply_start:
            self.response.restart_answer()
        if self.transcript.done and not before.done:
            yield from self.rest_of_text()
        yield self.response.add(result)
        self._check_complete(result.answer)

    def _apply(self, result: ActionCompleted) -> Iterator[Shown]:
        """Change the transcript by the result, and prepare the policy's reply."""
        action, answer = result.action, result.answer
        self._reply = answer
        if isinstance(answer, BaseException):
            return
        if isinstance(action, Write | Accept | Close):
            self._check(action)
        match action:
            case Generate():
                self._drafts[answer.segment] = replace(answer, ms=result.ms)
            case Advise():
                yield from self._advised(replace(answer, ms=result.ms))
            case Write():
                yield from self._written(action, replace(answer, ms=result.ms))
            case Accept(_, segment, score):
                if segment.text:
                    size = len(segment.tokens)
                    delta = TextDelta(segment.author, self.phase, segment.text, size)
                    yield from self._shown(delta)
                yield self._step(segment, self._made(segment), True, score)
                yield from self._commit(segment)
            case Reject(segment, score):
                yield self._step(segment, self._made(segment), False, score)
            case Close(_, forced, finish):
                after = self.budget.close(self.transcript, forced, finish)
                yield from self._last_words(after)
                self.transcript = self._reply = after

    def _written(self, write: Write, made: Generation) -> Iterator[Shown]:
        """Accept the generation of a Write, whose text has been shown."""
        before, segment = self.transcript, made.segment
        allowed = self.budget.clip(before, write.criteria).max_tokens
        # A segment may be short of what was generated: without half a character at its end, or
        # without the end that was given up for an answer. Then the context is not full.
        short = made.usage.generated < allowed or self.budget.certain(before, allowed) < allowed
        if segment.text or segment.tokens:
            yield self._step(segment, made)
        yield from self._commit(segment, allowed if short else None)

    def _advised(self, made: Generation) -> Iterator[Shown]:
        """Add advice, whose text has been shown; nothing if it is blank."""
        self._reply = self.transcript
        if made.segment.text.strip():
            step = self._step(made.segment, made)
            yield replace(step, step=replace(step.step, phase="advice"))
            thought = self.transcript.thought.plus(made.segment)
            self.transcript = self._reply = replace(self.transcript, thought=thought)

    def _commit(self, segment: Segment, allowed: int | None = None) -> Iterator[Shown]:
        """Accept a segment; yield also the text that the budget inserts after it."""
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
        yield from self._last_words(after)
        self.transcript = self._reply = after
        if thought_on or nudged:
            # From here on, the text is searched for a caller's stop strings again.
            if (rest := self._stops.end()).strip():
                yield TextDelta(segment.author, self.phase, rest)
            self._stops = StopStrings(self._limits.stop)
        if apart:
            yield TextDelta("policy", self.phase, APART)
        if nudged:
            yield from self._shown(TextDelta(NUDGE.author, self.phase, NUDGE.text), early=True)
            yield self._step(NUDGE)

    def _last_words(self, after: Transcript) -> Iterator[Shown]:
        """Yield the words by which the budget ends a thought by force."""
        words = self.budget.words
        if self.transcript.closed or words is None or not after.thought:
            return
        if after.thought[-1] is words:
            yield TextDelta(words.author, "thought", words.text)
            yield self._step(words)

    def _calls_in_thought(self, last: Segment) -> Segment | None:
        """Return the calls of tools at the end of a thought, as the answer, if the model ends its
        turn there without another answer. Their tokens count in the thought."""
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
        """Yield a text up to a stop string, which an `early` text is not searched for."""
        if delta.phase == "thought":
            yield delta
            return
        self._held_tokens += delta.tokens
        # Before `min_tokens` no stop string counts.
        written = sum(self.response.shown.values()) + self.transcript.ends
        early |= written < self._limits.min_tokens
        if text := (self._stops.skip if early else self._stops.feed)(delta.text):
            tokens, self._held_tokens = self._held_tokens, 0
            yield replace(delta, text=text, tokens=tokens)

    def answer_now(self) -> Iterator[Event]:
        """End the thought from outside: the policy begins again with the closed transcript."""
        if self.transcript.closed:
            return
        close = Close(self.transcript, forced=True)
        yield from self._add_result(ActionCompleted(close, None, 0.0))
        self._script.close()
        self._reply = None
        if not self.transcript.done:
            self._script = self.policy.solve(self.transcript)

    def rest_of_text(self) -> Iterator[Shown]:
        """Yield the text that was held back until the answer's end, once."""
        yield from map(self.response.add, self._end.release())
        last = self.transcript.last
        if last is not None and (rest := self._stops.end()):
            yield self.response.add(TextDelta(last.author, self.phase, rest))

    def remark(self, remarks: Mapping[str, str]) -> Iterator[TextDelta]:
        """Yield what the deployment adds to this answer, if anything."""
        last, text = self.transcript.last, remarks.get(self.transcript.reply.strip())
        if text is not None and last is not None and last.finish == "eos":
            self.transcript = self.transcript.extend(Segment("policy", text))
            yield self.response.add(TextDelta("policy", "answer", text))

    def complete(self, total_ms: float) -> RequestCompleted:
        """Return the last event; `total_ms` is the request's wall time."""
        response, last, stops = self.response, self.transcript.last, self._limits.stop
        if self._stops.found or (last is not None and last.finish == "stop"):
            response.stopped_by = self._stops.found or (stops[0] if len(stops) == 1 else "")
        metrics = response.totals(total_ms)
        return response.add(RequestCompleted(self.transcript, tuple(response.steps), metrics))

    def close(self) -> None:
        """Close the script, so that the policy's `finally` blocks run."""
        self._script.close()

    @property
    def stopped(self) -> bool:
        """Whether a caller's stop string was found: no text is shown after it."""
        return bool(self._stops.found)

    @property
    def phase(self) -> Literal["thought", "answer"]:
        return "answer" if self.transcript.closed else "thought"

    def _count_idle(self) -> None:
        self._idle += 1
        if self._idle > MAX_IDLE:
            raise BatonError(
                f"policy {type(self.policy).__name__} makes no progress: {self._idle} actions in "
                "a row added nothing to the transcript"
            )

    def _check(self, action: Write | Accept | Close) -> None:
        """Refuse an action that breaks a rule: text that was streamed cannot be taken back."""
        transcript = action.transcript
        if transcript is not self.transcript and transcript != self.transcript:
            raise BatonError("a policy may only extend the transcript that it was last given")
        if transcript.done:
            raise BatonError("a policy may not extend a transcript whose answer has ended")
        if isinstance(action, Advise) and (transcript.thinking or not transcript.begins_answer):
            raise BatonError("advice comes before an answer, in a transcript without a thought")

    def _check_complete(self, answer: Any) -> None:
        """Raise a worker's failure if the request lets no policy work around it."""
        if self._limits.complete and isinstance(answer, WorkerError):
            raise answer

    def _made(self, segment: Segment) -> Generation | None:
        """Return the generation that made a segment, which may be one end of a longer draft.

        An end gets the share of the draft's time by its tokens.
        """
        if segment in self._drafts or not segment.tokens:
            return self._drafts.get(segment)
        count = len(segment.tokens)
        for draft in islice(reversed(self._drafts.values()), CUT_AMONG):
            ids = draft.segment.tokens
            is_end = segment.tokens in (ids[:count], ids[-count:])
            if draft.segment.author == segment.author and is_end:
                return replace(draft, ms=draft.ms * count / len(ids), provenance=None)
        return None

    def _step(
        self,
        segment: Segment,
        made: Generation | None = None,
        accepted: bool = True,
        score: float | None = None,
    ) -> StepCompleted:
        """Return the step of a segment; `made`: the generation that made it, if any."""
        tokens, ms = len(segment.tokens), 0.0 if made is None else made.ms
        step = Step(segment.author, segment.text, accepted, tokens, ms, score, self.phase)
        return StepCompleted(step, None if made is None else made.provenance)


def _answered(transcript: Transcript, names: Iterable[WorkerName]) -> Script[None]:
    """End the thought, and let the first worker with room write the rest; if one fails, the next.

    Raises:
        WorkerError: one failed before or in the answer, and no other continued.
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


def beginning(messages: Sequence[Message], limits: Limits) -> Transcript:
    """Return a request's transcript; an assistant's message at the end is an answer to continue."""
    if messages and messages[-1].role == "assistant":
        begun = Segment("policy", messages[-1].content)
        return Transcript(tuple(messages[:-1])).without_thought().extend(begun)
    transcript = Transcript(tuple(messages), effort=limits.effort)
    return transcript if limits.thinking else transcript.without_thought()
