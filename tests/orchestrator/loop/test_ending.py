"""Loops in a thought, and a soft budget."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.evaluation.recording import replayed
from deploy.lab.reenact.dialogues import Dialogue, shipped
from orchestrator.loop.actions import Generate, Verify, Write
from orchestrator.loop.ending import COMPARED, LEAST, _last_paragraphs, loops
from orchestrator.loop.events import ActionCompleted
from orchestrator.loop.policy import Policy
from orchestrator.types import (
    Generation,
    Limits,
    Segment,
    Segments,
    StopCriteria,
    Transcript,
)
from policies import POLICIES
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.orchestrator.loop.solving import both, heard, shown
from tests.workers.scripted import Say, Scripted, words

LONG = " is a step of many words." * 12


def steps(names: str, end: str = LONG) -> Segments:
    return Segments(Segment("small", f"{name}{end}\n\n") for name in names)


def written(*texts: str) -> Segments:
    return Segments(Segment("small", text) for text in texts)


@pytest.mark.parametrize("names", ["aa", "baa", "abab", "xabcabc", "abcdabcd"])
def test_a_loop_of_up_to_four_steps_is_found(names: str) -> None:
    assert loops(steps(names))


@pytest.mark.parametrize("names", ["", "a", "ab", "aba", "aab", "abac", "abcab", "abcdeabcde"])
def test_what_is_no_loop_goes_on(names: str) -> None:
    assert not loops(steps(names))


def test_short_steps_must_come_more_often_and_blank_ones_are_none() -> None:
    assert not loops(steps("a" * 39, " is short"))
    assert loops(steps("a" * 40, " is short"))
    assert not loops(written("So:\n\n", *["\n\n"] * 9))


def test_an_answer_must_repeat_four_times() -> None:
    assert not loops(steps("aaa"), thinking=False)
    assert loops(steps("aaaa"), thinking=False)
    assert not loops(written("Wait, " * 1000), thinking=False)


def test_steps_are_those_of_the_text_not_of_its_segments() -> None:
    assert not loops(written("1", "0", "0"))  # one step, cut at every token
    assert not loops(written(f"a{LONG}\n\n", f"a{LONG}"))  # the second may go on differently
    assert loops(written("Wa", f"it.{LONG}\n\n", "Wait.", f"{LONG}\n\n"))


@pytest.mark.parametrize(
    "unit", ["Wait. ", "ha", "0", "No, it is 7, so x is 9; again from the start, "]
)
def test_a_text_that_repeats_inside_a_step_is_found_once_it_is_long(unit: str) -> None:
    count = LEAST // len(unit)
    assert not loops(written("Let me see. " + unit * (count - 1)))
    assert loops(written("Let me see. " + unit * (count + 2)))
    assert loops(written("Let me see. ", *[unit] * (count + 2)))


def test_only_the_end_of_a_thought_without_steps_is_read() -> None:
    lines = [f"{i:099}\n" for i in range(2000)]
    assert not loops(written(*lines))
    begun = written(*lines, "\n\n", *[f"a{LONG}\n\n"] * 2)
    assert loops(begun)
    assert sum(map(len, _last_paragraphs(begun))) <= COMPARED


# --- every policy --------------------------------------------------------------------------------


def looping_chains(count: int) -> Iterator[tuple[str, str]]:
    """Yield a chain's beginning and what it repeats: whole steps, sentences, words, characters."""
    draws = random.Random(3)
    problems = draw("dev", 5, count)
    for i, problem in enumerate(problems):
        facts = [f"{fact.expression} = {fact.value}" for fact in problem.facts]
        begun = "".join(f"Step {j}: {fact}.\n\n" for j, fact in enumerate(facts))
        unit = (
            f"Wait, let me check {facts[-1]} once more.\n\n",
            f"But is {facts[0]} right?\n\nIt must be, since {facts[-1]}.\n\n",
            f"{facts[-1]}, no, that is {draws.randrange(100)}, so again: ",
            draws.choice(("wait ", "hmm, ", "-1 ")),
        )[i % 4]
        yield begun, unit


class Looping(Scripted):
    """Writes `begun`, then `unit` without end; its answer is 7."""

    def __init__(self, begun: str, unit: str) -> None:
        self.text = begun + unit * (6000 // len(unit))

        def line(transcript: Transcript, criteria: StopCriteria) -> Say:
            if transcript.closed:
                return Say("7", "eos")
            return Say(self.text[len(transcript.text) :][:6000])

        super().__init__(line, scores=lambda transcript: 9.0)


@pytest.mark.parametrize("name", POLICIES)
async def test_forty_looping_chains_end_under_every_policy(name: str) -> None:
    policy = POLICIES[name]()
    for begun, unit in looping_chains(40):
        workers = both(Looping(begun, unit))
        _, ended = await heard(policy, workers, limits=Limits(max_tokens=2000))
        transcript = ended.transcript
        assert (transcript.forced, transcript.finish) == (True, "stop"), (begun, unit)
        assert transcript.reply.strip() == "7"
        assert len(transcript.text) < len(begun) + 3 * LEAST


async def last_chain(dialogue: Dialogue) -> Segments:
    """The longest chain of a recorded request, with the text that was made last."""
    found = Segments()
    async for event in replayed(dialogue.recording, dialogue.build_policy()):
        match event:
            case ActionCompleted(Generate() | Write() as action, Generation(made)):
                found = action.transcript.chain.plus(made)
            case ActionCompleted(Verify(transcript=before, segment=made)):
                found = before.chain.plus(made)
    return found


async def test_no_recorded_chain_is_cut_at_any_word() -> None:
    chains = [await last_chain(one) for one in shipped()]
    assert len(chains) >= 200
    for chain in chains:
        read = Segments()
        for word in re.findall(r"\s+|\S+", chain.text()):
            read = read.plus(Segment("small", word))
            if "\n" in word:
                assert not loops(read), read.text()[-200:]


# --- the soft budget -----------------------------------------------------------------------------

PARAGRAPHS = "".join(f"This is step number {i}.\n\n" for i in range(20))
STEP = len(words("This is step number 0.\n\n"))


@pytest.mark.parametrize("policy", [LargeOnly, SpecReason])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.99])
async def test_a_soft_budget_closes_the_thought_at_the_end_of_a_step(
    policy: type[Policy], share: float
) -> None:
    budget = 10 * STEP
    asked = policy(budget=budget, soft_budget=share, closing="Enough.\n")
    events, ended = await heard(asked, both(Scripted(story=(PARAGRAPHS, "7"))))
    transcript = ended.transcript
    *own, closing = transcript.thought
    assert (closing.author, closing.text) == ("policy", "Enough.\n")
    chain = "".join(segment.text for segment in own)
    assert chain == PARAGRAPHS[: len(chain)]
    assert chain.endswith("\n\n")
    late = transcript.thought.tokens - share * budget
    assert 0 <= late < STEP + 16  # the least call
    assert (transcript.forced, transcript.finish, transcript.reply) == (True, "stop", "7")
    assert shown(events, "thought") == transcript.text


def endless(transcript: Transcript, criteria: StopCriteria) -> Say:
    return Say("and so on " * 1000, "length")


async def alone(policy: Policy, large: Scripted, **limits: Any) -> Transcript:
    _, ended = await heard(policy, {"large": large}, limits=Limits(**limits))
    return ended.transcript


async def test_without_a_step_the_hard_budget_ends_the_thought() -> None:
    large = Scripted(story=(PARAGRAPHS.replace("\n", " "), "7"))
    assert (await alone(LargeOnly(budget=50, soft_budget=0.5), large)).thought.tokens == 50


@pytest.mark.parametrize("known", ["\n\nTime is up.\n", ""])
async def test_auto_closes_with_the_words_of_the_family(known: str) -> None:
    large = Scripted(story=(PARAGRAPHS, "7"), closing=known)
    transcript = await alone(LargeOnly(budget=20, closing="auto"), large)
    assert transcript.text.endswith(known)
    assert "auto" not in transcript.text
    assert transcript.thought.tokens == 20


@pytest.mark.parametrize(("thought", "cap"), [("It is 7.", 2048), (PARAGRAPHS, 40)])
async def test_an_own_end_and_a_cut_have_no_closing_words(thought: str, cap: int) -> None:
    large = Scripted(story=(thought, "7"))
    assert "Enough." not in (await alone(LargeOnly(closing="Enough."), large, max_tokens=cap)).text


async def test_a_loop_that_is_cut_in_mid_call_keeps_its_authors_ids() -> None:
    """Else the whole thought would be encoded, and perhaps read, again."""
    (cut,) = (await alone(LargeOnly(), Scripted(endless), max_tokens=2000)).thought
    assert 0 < len(cut.tokens) < 2000
    assert cut.tokenizer == "words"


async def test_a_request_for_a_length_gets_it_whatever_repeats() -> None:
    limits = {"max_tokens": 2000, "ignore_eos": True}
    assert (await alone(LargeOnly(), Scripted(endless), **limits)).thought.tokens == 2000
