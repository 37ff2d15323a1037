"""Stop when sure: probes of the answer end a thought under every policy, and replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.loop.policy import Policy
from orchestrator.types import StopCriteria, Transcript
from policies import POLICIES
from tests.orchestrator.loop.solving import GONE, both, heard, replays, shown
from tests.workers.scripted import Line, Say, Scripted

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


def made(name: str, **more: Any) -> Policy:
    return POLICIES[name](**{"sure": 2, **more})


@pytest.mark.parametrize("name", POLICIES)
async def test_agreeing_probes_end_the_thought_under_every_policy(name: str) -> None:
    policy = made(name)
    worker = thinker(["It is 1.", "It is 2.", "It is 7.", "So 7", "7", "7"])
    events, ended = await heard(policy, both(worker))
    assert ended.transcript.text.count("\n\n") == 4  # the third probe and the fourth agree
    assert (ended.transcript.forced, ended.transcript.finish) == (True, "stop")
    assert "7" in ended.transcript.reply
    assert shown(events, "answer") == ended.transcript.reply  # nothing of a probe
    assert replays(name, policy, events)


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
        ([GONE, "7"], 3),
    ],
)
async def test_only_sure_probes_in_a_row_count(answers: list[Line], steps: int) -> None:
    small = thinker(answers)
    _, ended = await heard(made("large-only"), {"small": small, "large": thinker(["7"])})
    assert ended.transcript.text.count("\n\n") == steps
    assert ended.transcript.reply == "7"
    assert {call.call.transcript.closed for call in small.calls} == {True}


async def test_a_probe_continues_the_given_beginning() -> None:
    worker = thinker(["Answer: 7"])
    await heard(made("large-only", probe="Answer: ", probe_tokens=3), both(worker))
    probes = [call for call in worker.calls if call.args[0].max_tokens == 3]
    assert len(probes) == 2
    assert {call.call.transcript.reply for call in probes} == {"Answer: "}
