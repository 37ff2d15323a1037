"""GlimpRouter as a dialogue, and against scripted workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.evaluation.recording import RecordedRequest, Recording, dumps, loads
from deploy.evaluation.replay import AnswerMissing, replay, replay_other_policy
from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Close, Generate, Reject, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from policies.entropy_gate import EntropyGate
from tests.policies.plays import GONE, TRACE, Play, draft, step
from workers.scripted import Say, Scripted

DOUBT = Generation(Segment("small", "", finish="doubt"), entropy=2.0)


def test_a_step_begun_with_certainty_is_the_small_models() -> None:
    play = Play(EntropyGate(threshold=0.7))
    glimpse = StopCriteria(512, until=("\n\n",), max_entropy=0.7)
    assert play.asked == Generate("small", TRACE, glimpse)
    sure = draft("2+2=4.\n\n")
    assert play(sure) == Accept(TRACE, sure.segment)
    after = TRACE.extend(sure.segment)
    assert play(after) == Generate("small", after, glimpse)


def test_doubt_leaves_the_step_to_the_large_model_without_a_gate() -> None:
    play = Play(EntropyGate())
    assert play(DOUBT) == Write("large", TRACE, StopCriteria(512, until=("\n\n",)))


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_dead_small_model_leaves_the_step_to_the_large(error: Exception) -> None:
    assert isinstance(Play(EntropyGate())(error), Write)


def test_a_backend_without_entropies_is_told() -> None:
    with pytest.raises(Unsupported):
        Play(EntropyGate())(Unsupported("max_entropy"))


def test_a_blank_step_is_no_step() -> None:
    play = Play(EntropyGate())
    blank = draft("\n\n")
    assert play(blank) == Reject(blank.segment)
    assert isinstance(play(None), Write)


def test_the_small_model_may_close_the_thought_at_once() -> None:
    play = Play(EntropyGate(answer_by="small"))
    closing = draft("", "think_end")
    assert play(closing) == Accept(TRACE, closing.segment)
    answer = play(replace(TRACE, closed=True))
    assert isinstance(answer, Write)
    assert answer.worker == "small"


def test_first_steps_by_the_large_model() -> None:
    play = Play(EntropyGate(first_n=1))
    assert isinstance(play.asked, Write)
    assert isinstance(play(TRACE.extend(step("large", "a\n\n"))), Generate)


def test_two_equal_steps_close_the_thought() -> None:
    play = Play(EntropyGate())
    one = TRACE.extend(step("small", "Wait.\n\n"))
    play(draft("Wait.\n\n"))
    play(one)
    play(draft("Wait.\n\n"))
    two = one.extend(step("small", "Wait.\n\n"))
    assert play(two) == Close(two, forced=True)


@pytest.mark.parametrize("name", ["threshold", "step_tokens", "first_n"])
def test_bad_parameters_are_refused_by_name(name: str) -> None:
    for value in (-1, "x", float("nan")):
        with pytest.raises(ValidationError) as caught:
            EntropyGate(**{name: value})  # type: ignore[arg-type]
        assert caught.value.errors()[0]["loc"] == (name,)
    with pytest.raises(ValidationError):
        EntropyGate(threshold=20.1)


SMALL = {0: Say("2+2 is 5.\n\n", entropy=0.2), 1: Say("so 6.\n\n", entropy=0.9)}
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


def small(transcript: Transcript, criteria: StopCriteria) -> Say:
    return SMALL.get(len(transcript.thought), Say("it is 6.", "think_end", entropy=1.5))


async def run(policy: Policy, **limits: Any) -> tuple[Recording, RequestCompleted]:
    asked = RecordedRequest(
        "r", "entropy-gate", (Message("user", "2+2+2?"),), limits=Limits(**limits)
    )
    workers: Any = {"small": Scripted(small), "large": Scripted(story=LARGE)}
    events = solve(
        policy,
        asked.messages,
        workers,
        request="r",
        sampling=Sampling(),
        limits=asked.limits,
    )
    heard = [event async for event in events]
    ended = heard[-1]
    assert isinstance(ended, RequestCompleted)
    kept = tuple(event for event in heard if not isinstance(event, TextDelta))
    return Recording(asked, kept), ended


def authors(ended: RequestCompleted) -> list[str]:
    return [segment.author for segment in ended.transcript.thought]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, ["large", "large", "large"]),
        (0.5, ["small", "large", "large"]),
        (1.0, ["small", "small", "large"]),
        (20.0, ["small", "small", "small"]),
    ],
)
async def test_the_threshold_divides_the_work(threshold: float, expected: list[str]) -> None:
    _, ended = await run(EntropyGate(threshold=threshold))
    assert authors(ended) == expected
    assert ended.transcript.done


@pytest.mark.asyncio
async def test_a_recording_answers_for_stricter_gates_too() -> None:
    recording, ended = await run(EntropyGate(threshold=1.0))
    again = loads(dumps(recording))
    assert list(replay(again, EntropyGate(threshold=1.0)))[-1] == recording.ended
    assert recording.ended == ended
    entropies = [
        event.answer.entropy
        for event in again.events
        if isinstance(event, ActionCompleted) and isinstance(event.action, Generate)
    ]
    assert [entropy for entropy in entropies if entropy is not None] == [0.2, 0.9, 1.5]
    looser = list(replay_other_policy(again, EntropyGate(threshold=1.2)))[-1]
    assert isinstance(looser, RequestCompleted)
    assert looser.transcript == ended.transcript
    with pytest.raises(AnswerMissing, match="Write"):  # the large model never wrote that step
        list(replay_other_policy(again, EntropyGate(threshold=0.5)))
    with pytest.raises(AnswerMissing, match="Generate"):  # the small one was not let go on
        list(replay_other_policy(again, EntropyGate(threshold=2.0)))


@pytest.mark.asyncio
async def test_a_withheld_step_replays_as_if_it_had_been_glimpsed_at() -> None:
    """All open, and the large model's steps known from another run: any gate can be replayed."""
    everything, _ = await run(EntropyGate(threshold=20.0))
    nothing, _ = await run(EntropyGate(threshold=0.0))
    both = Recording(everything.request, (*everything.events[:-1], *nothing.events))
    for threshold, expected in ((0.1, ["large"] * 3), (20.0, ["small"] * 3)):
        ended = list(replay_other_policy(both, EntropyGate(threshold=threshold)))[-1]
        assert isinstance(ended, RequestCompleted)
        assert authors(ended) == expected


@pytest.mark.asyncio
async def test_a_budget_of_one_token() -> None:
    _, ended = await run(EntropyGate(threshold=20.0, budget=1))
    assert (ended.transcript.text, ended.transcript.forced, ended.transcript.done) == (
        "2+2 ",
        True,
        True,
    )
