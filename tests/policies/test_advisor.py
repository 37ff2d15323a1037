"""The small model executes and the large one advises, as a dialogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import BatonError, Spent, Unsupported
from orchestrator.loop.actions import Accept, Advise, Classify, Generate, Reject, Script
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Generation,
    Limits,
    Message,
    Segment,
    StopCriteria,
    ToolCall,
    Transcript,
)
from policies.advisor import INSTRUCTION, Advisor
from tests.policies.plays import GONE, TRACE, Play, digit, draft, ends, run, step, writes
from tests.workers.scripted import Say, Scripted

PLAIN = TRACE.without_thought()
ASK = Advise("large", PLAIN, StopCriteria(64), (Message("user", INSTRUCTION),))
CALL = ToolCall("c", "price_of", '{"thing": "lamp"}')


def after(*messages: Message) -> Transcript:
    """A conversation in which the assistant called a tool."""
    asked = (Message("user", "A lamp?"), Message("assistant", "", calls=(CALL,)), *messages)
    return Transcript(asked).without_thought()


def result(text: str) -> Message:
    return Message("tool", text, call_id="c")


def test_sure_steps_need_no_advice() -> None:
    play = Play(Advisor())
    assert play.asked == Generate("small", TRACE, Advisor().criteria)
    first = step("small", "2+2 is 4.\n\n")
    assert play(draft("2+2 is 4.\n\n")) == Accept(TRACE, first)
    more = TRACE.extend(first)
    assert isinstance(play(more), Generate)
    claim = play(draft("So 4.", "think_end"))
    assert isinstance(claim, Classify)
    assert claim.transcript == more.extend(step("small", "So 4.", "think_end"))
    accepted = play(digit(9))
    assert accepted == Accept(more, step("small", "So 4.", "think_end"), 9.0)
    closed = replace(more.extend(accepted.segment), closed=True)
    assert writes(play(closed), "small", closed)
    assert ends(play, replace(closed, done=True))


@pytest.mark.parametrize("claims", [False, True])
def test_advice_in_a_thought_is_a_paragraph_of_it(claims: bool) -> None:
    play = Play(Advisor(advice_tokens=9, max_uses=1))
    doubted = draft("It is 5.", "think_end" if claims else "until", -0.1 if claims else -3.0)
    play(doubted)
    rejected = play(digit(2)) if claims else play.asked
    assert rejected == Reject(doubted.segment, 2.0 if claims else None)
    advice = play(None)
    assert writes(advice, "large", TRACE)
    assert advice.criteria == StopCriteria(9, until=("\n\n",))
    advised = TRACE.extend(step("large", "No, add them.\n\n"))
    assert isinstance(play(advised), Generate)
    again = draft("It is 5.", "think_end", -3.0)  # no advice is left
    assert play(again) == Accept(advised, again.segment)


def test_advice_without_a_thought_is_a_turn_before_the_answer() -> None:
    play = Play(Advisor(), PLAIN)
    play(draft("It is 5.\n\n", logprob=-3.0))
    assert play(None) == ASK
    advised = replace(PLAIN, thought=PLAIN.thought.plus(step("large", "Add them.")))
    assert play(advised) == Generate("small", advised, Advisor().criteria)
    assert advised.turns == (*PLAIN.messages, Message("user", "Add them."))
    kept = step("small", "2+2 is 4.\n\n")
    assert play(draft("2+2 is 4.\n\n")) == Accept(advised, kept)
    begun = advised.extend(kept)
    play(begun)
    play(draft("So 5.", "eos", -3.0))
    assert writes(play(None), "large", begun)  # a paragraph of the answer, which has begun


def test_advice_may_be_the_beginning_of_an_answer() -> None:
    play = Play(Advisor(advise_by="beginning", advice_tokens=4), PLAIN)
    play(draft("It is 5.\n\n", logprob=-3.0))
    advice = play(None)
    assert writes(advice, "large", PLAIN)
    assert advice.criteria.max_tokens == 4


@pytest.mark.parametrize(
    ("transcript", "text", "asks"),
    [
        (after(result("10")), '{"name": "price_of", "arguments": {"thing":"lamp"}}', True),
        (after(result("10")), '{"name": "price_of", "arguments": {"thing":"tea"}}', False),
        (after(result("10"), Message("user", "Again?")), f"price_of {CALL.arguments}", False),
        (after(result("Error: no"), result("error: busy")), "Hm.", True),
        (after(result("10"), result("error: busy")), "Hm.", False),
        (after(result("Error: no"), result("error: busy")).extend(step("small", "Hm")), "m", False),
        (PLAIN, "Hm.", False),
    ],
)
def test_repeated_calls_and_failures_ask_for_advice(
    transcript: Transcript, text: str, asks: bool
) -> None:
    play = Play(Advisor(), transcript)
    play(draft(text, "until"))
    assert isinstance(play.asked, Reject if asks else Accept)


@pytest.mark.parametrize("error", [GONE, Spent("spent")])
def test_without_advice_the_small_model_goes_on_and_asks_no_more(error: Exception) -> None:
    play = Play(Advisor(max_uses=100), PLAIN)
    play(draft("It is 5.", "eos", -3.0))
    assert play(None) == ASK
    assert isinstance(play(error), Generate)
    assert isinstance(play(draft("It is 5.", "eos", -3.0)), Accept)


def test_a_worker_without_log_probabilities_is_refused() -> None:
    bare = Generation(replace(step("small", "It is 5.", "eos"), logprobs=()))
    with pytest.raises(Unsupported, match="log-probabilities"):
        Play(Advisor(), PLAIN)(bare)
    play = Play(Advisor(unsure=0), PLAIN)
    assert isinstance(play(bare), Classify)


def test_a_claim_that_cannot_be_scored_is_kept() -> None:
    play = Play(Advisor(), PLAIN)
    play(draft("It is 4.", "eos"))
    assert isinstance(play(GONE), Accept)


async def played(policy: Policy, small: Scripted, large: Scripted, **limits: int) -> list[Event]:
    asked = Request("r", (Message("user", "2+2?"),), limits=Limits(**limits))  # type: ignore[arg-type]
    return [event async for event in solve(policy, asked, {"small": small, "large": large})]


UNSURE = Say("It is 5 or so.", "eos", -3.0)


async def test_advice_streams_as_a_thought_and_is_read_by_both() -> None:
    small = Scripted([UNSURE, "It is 4."], thinks=False)
    large = Scripted([Say("Add the two.", "eos")], scores=[9], thinks=False)
    events = await played(Advisor(), small, large)
    texts = [(e.author, e.phase, e.text) for e in events if isinstance(e, TextDelta)]
    assert texts[:3] == [("large", "thought", word) for word in ("Add ", "the ", "two.")]
    assert {(author, phase) for author, phase, _ in texts[3:]} == {("small", "answer")}
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert [(one.author, one.phase, one.text, one.accepted) for one in ended.steps] == [
        ("small", "answer", "It is 5 or so.", False),
        ("large", "advice", "Add the two.", True),
        ("small", "answer", "It is 4.", True),
    ]
    transcript = ended.transcript
    assert (transcript.reply, transcript.finish) == ("It is 4.", "stop")
    asked = [one.call.transcript.messages[-1].content for one in large.calls]
    assert INSTRUCTION in asked
    assert small.calls[-1].call.transcript.turns[-1] == Message("user", "Add the two.")


@pytest.mark.parametrize("cap", [6, 40])
async def test_advice_leaves_room_for_the_answer(cap: int) -> None:
    small = Scripted([UNSURE, "It is 4."], thinks=False)
    large = Scripted([Say("word " * 60, "eos")], scores=[9], thinks=False)
    events = await played(Advisor(answer_reserve=3), small, large, max_tokens=cap)
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert ended.transcript.thought.tokens == cap - 3
    assert ended.transcript.reply == "It is 4."


async def test_no_advice_is_left_when_the_cap_is_spent() -> None:
    large = Scripted([], scores=[9], thinks=False)
    ended = await run(Advisor(max_large_tokens=0), Scripted([UNSURE] * 5, thinks=False), large)
    assert ended.transcript.reply == UNSURE.text
    assert not ended.transcript.thought


class Late(Policy):
    """Advises where it may not."""

    def solve(self, transcript: Transcript) -> Script[None]:
        if not transcript.thinking:
            transcript = yield from Accept(transcript, Segment("policy", "It is "))
        yield from Advise("large", transcript, StopCriteria(4))


@pytest.mark.parametrize("thinks", [True, False])
async def test_advice_after_the_beginning_of_an_answer_is_refused(thinks: bool) -> None:
    with pytest.raises(BatonError, match="before an answer"):
        await run(Late(), Scripted(["4"] * 4, thinks=thinks), Scripted(["4"] * 4, thinks=thinks))
