"""Stop when sure: probes of the answer end a thought under every policy, and replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.evaluation.recording import RecordedRequest, Recording, dumps, loads
from deploy.evaluation.replay import replay
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, StopCriteria, Transcript
from policies import POLICIES
from tests.workers.scripted import Line, Say, Scripted

QUESTION = (Message("user", "?"),)
STEPS = 12


def thinker(answers: list[Line]) -> Scripted:
    """Thinks twelve steps; after step n its answer is `answers[n - 1]`, or the last one."""

    def line(transcript: Transcript, criteria: StopCriteria) -> Line:
        done = transcript.text.count("\n\n")
        if transcript.closed:
            begun = transcript.reply
            answer = answers[min(done, len(answers)) - 1] if done else "nothing"
            if isinstance(answer, Say):
                return replace(answer, text=answer.text[len(begun) :])
            return answer if isinstance(answer, BaseException) else Say(answer, "eos", -0.01)
        whole = "".join(f"This is step {i} of the thought.\n\n" for i in range(STEPS))
        if len(transcript.text) >= len(whole):
            return Say("", "think_end")
        return Say(whole[len(transcript.text) :], "think_end")

    return Scripted(line)


async def thought(policy: Policy, both: Scripted, **limits: Any) -> tuple[int, list[Event]]:
    """Return the number of steps, and the events."""
    workers: dict[Any, Scripted] = {"small": both, "large": both}
    request = Request("r", QUESTION, limits=Limits(**limits))
    events = [event async for event in solve(policy, request, workers)]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    return ended.transcript.text.count("\n\n"), events


def made(name: str, **more: Any) -> Policy:
    return POLICIES[name](**{"sure": 2, **more})


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "vote"])
async def test_agreeing_probes_end_the_thought_under_every_policy(name: str) -> None:
    both = thinker(["It is 1.", "It is 2.", "It is 7.", "So 7", "7", "7"])
    policy = made(name)
    steps, events = await thought(policy, both)
    assert steps == 4  # the third probe and the fourth agree
    ended: Any = events[-1]
    assert (ended.transcript.forced, ended.transcript.finish) == (True, "stop")
    assert "7" in ended.transcript.reply
    shown = "".join(e.text for e in events if isinstance(e, TextDelta) and e.phase == "answer")
    assert shown == ended.transcript.reply  # nothing of a probe
    kept = tuple(event for event in events if not isinstance(event, TextDelta))
    recording = loads(dumps(Recording(RecordedRequest("r", name, QUESTION), kept)))
    again = [event for event in replay(recording, policy) if not isinstance(event, TextDelta)]
    assert tuple(again) == kept


@pytest.mark.parametrize(
    ("answers", "steps"),
    [
        (["7"], 2),
        (["1", "2"], 3),
        ([str(i) for i in range(STEPS)], STEPS),  # they never agree
        ([Say("7", "eos", -0.5)], STEPS),  # they are not sure
        (["7", Say("7", "eos", -0.5), "7", "7"], 4),  # a doubt between
        ([""], STEPS),
        ([Say("12, or 7?", "think_end", -0.01)] * 9 + ["7"], 11),  # thoughts that go on
        ([WorkerUnavailable("gone"), "7"], 3),
    ],
)
async def test_only_sure_probes_in_a_row_count(answers: list[Line], steps: int) -> None:
    small, large = thinker(answers), thinker(["7"])
    workers: dict[Any, Scripted] = {"small": small, "large": large}
    events = [e async for e in solve(made("large-only"), Request("r", QUESTION), workers)]
    ended: Any = events[-1]
    assert ended.transcript.text.count("\n\n") == steps
    assert ended.transcript.reply == "7"
    assert {call.call.transcript.closed for call in small.calls} == {True}


async def test_a_probe_continues_the_given_beginning() -> None:
    both = thinker(["Answer: 7"])
    await thought(made("large-only", probe="Answer: ", probe_tokens=3), both)
    probes = [call for call in both.calls if call.args[0].max_tokens == 3]
    assert len(probes) == 2
    assert {call.call.transcript.reply for call in probes} == {"Answer: "}


@pytest.mark.parametrize("name", POLICIES)
async def test_without_probes_nothing_changes(name: str) -> None:
    both = thinker(["7"])
    steps, _ = await thought(POLICIES[name](), both)
    assert steps == STEPS
