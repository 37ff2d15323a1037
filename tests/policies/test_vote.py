"""Several chains by the small model and their vote, as a dialogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.loop.actions import REST, Accept, Generate, Reject
from orchestrator.types import Finish, Sampling, Transcript
from policies.vote import Vote
from tests.policies.plays import GONE, TRACE, Play, draft, ends, run, said, step, writes
from tests.workers.scripted import Say, Scripted

PLAIN = TRACE.without_thought()


def answers(play: Play, text: str, temperature: float | None, finish: Finish = "eos") -> None:
    """Play one chain of a pair without a thought."""
    assert play.asked == Generate("small", PLAIN, REST, temperature)
    play(draft(text, finish))


def test_chains_that_agree_need_no_large_model() -> None:
    play = Play(Vote(temperature=0.5), PLAIN)
    answers(play, "It is 4.", None)
    answers(play, "So 2+2 = 4", 0.5)
    first = step("small", "It is 4.", "eos")
    assert play.asked == Reject(step("small", "So 2+2 = 4", "eos"))
    assert play(None) == Accept(PLAIN, first)
    assert ends(play, replace(PLAIN.extend(first), done=True))


def test_a_third_chain_decides() -> None:
    play = Play(Vote(), PLAIN)
    for text, temperature in (("It is 5.", None), ("It is 4.", 0.7), (r"\boxed{4}", 0.7)):
        answers(play, text, temperature)
    dropped = []
    while isinstance(play.asked, Reject):
        dropped.append(play.asked.segment.text)
        play(None)
    assert dropped == ["It is 5.", r"\boxed{4}"]
    assert play.asked == Accept(PLAIN, step("small", "It is 4.", "eos"))


@pytest.mark.parametrize("finish", ["eos", "length"])
def test_the_large_model_writes_if_they_differ_or_are_cut(finish: Finish) -> None:
    play = Play(Vote(), PLAIN)
    for text, temperature in (("3", None), ("4", 0.7), ("5" if finish == "eos" else "4", 0.7)):
        answers(play, text, temperature, finish)
    for _ in range(3):
        assert isinstance(play.asked, Reject)
        play(None)
    assert writes(play.asked, "large", PLAIN)


def test_blank_answers_do_not_agree() -> None:
    play = Play(Vote(chains=2), PLAIN)
    answers(play, "\n", None)
    answers(play, "\n", 0.7)
    assert isinstance(play.asked, Reject)


def test_the_large_model_stands_in_for_a_dead_small_one() -> None:
    play = Play(Vote())
    play(draft("Hm.", "think_end"))
    play(GONE)  # the chain has no answer
    play(GONE)
    assert play.asked == Reject(step("small", "Hm.", "think_end"))
    assert writes(play(None), "large", TRACE)


def test_a_thought_that_the_budget_cut_has_an_answer() -> None:
    play = Play(Vote())
    cut = play(draft("Hm", "length")).transcript
    assert (cut.closed, cut.ends) == (True, 0)


def test_a_thought_that_goes_on_after_its_cut_is_no_answer() -> None:
    play = Play(Vote())
    cut = play(draft("Hm", "length")).transcript
    again = play(draft("so 42.", "think_end")).transcript
    assert (again.ends, again.forced) == (1, False)
    assert cut.forced
    assert play(draft("7", "eos")) == Generate("small", TRACE, REST, 0.7)


def test_a_chain_is_a_thought_and_an_answer() -> None:
    play = Play(Vote())
    thought = step("small", "Two and two.", "think_end")
    thinks: Transcript = replace(TRACE.extend(thought), closed=True, ends=1)
    asked = play(draft("Two and two.", "think_end"))
    assert asked == Generate("small", thinks, REST)
    assert asked.transcript.ends == 1  # so that the answer's cap counts it
    assert play(draft("4", "eos")) == Generate("small", TRACE, REST, 0.7)
    play(draft("Twice two.", "think_end"))
    play(draft("4.0", "eos"))
    assert [play.asked, play(None)] == [
        Reject(step("small", "Twice two.", "think_end")),
        Reject(step("small", "4.0", "eos")),
    ]
    assert play(None) == Accept(TRACE, thought)
    assert play(thinks) == Accept(thinks, step("small", "4", "eos"))


async def test_in_the_step_loop() -> None:
    small = Scripted([Say("Hm.", "think_end"), "It is 6.", Say("So.", "think_end"), "6"])
    ended = await run(Vote(), small, Scripted([]))
    assert said(ended) == ("Hm.", "It is 6.")
    assert [(one.text, one.accepted) for one in ended.steps] == [
        ("So.", False), ("6", False), ("Hm.", True), ("It is 6.", True),
    ]  # fmt: skip
    drawn = [one.args[1] for one in small.calls if one.args[0].max_tokens]
    assert all(isinstance(one, Sampling) for one in drawn)
    assert [one.temperature for one in drawn] == [0.0, 0.0, 0.7, 0.7]
    again = Scripted([Say("Hm.", "think_end"), "It is 6.", Say("So.", "think_end"), "6"])
    await run(Vote(), again, Scripted([]))  # a greedy request gets the same chains each time
    assert [one.args[1] for one in again.calls if one.args[0].max_tokens] == drawn


async def test_each_chain_is_drawn_with_another_seed() -> None:
    small = Scripted([Say(f"{i}.", finish) for i in range(4) for finish in ("think_end", "eos")])
    await run(Vote(chains=4, agree=4), small, Scripted(["Hm.\n\n", Say("So.", "think_end"), "7"]))
    seeds = [one.args[1].seed for one in small.calls if one.args[0].max_tokens]
    assert len(set(seeds[2:])) == 6
