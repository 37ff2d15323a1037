"""Recordings: written and read without a loss, and a policy's decisions again without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.calls import Refusal
from deploy.evaluation.recording import (
    CallMissing,
    RecordedWorker,
    Recording,
    compare,
    dumps,
    load,
    replayed,
)
from orchestrator.errors import (
    BatonError,
    ConfigError,
    ContextLengthExceeded,
    Unsupported,
    WorkerUnavailable,
)
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Generation,
    Limits,
    Sampling,
    StopCriteria,
)
from orchestrator.worker import Call, Delta
from policies.coin import Coin
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import (
    LARGE,
    QUESTION,
    RUNS,
    SMALL,
    first_good,
    read_again,
    record,
    recorded,
)
from tests.orchestrator.loop.test_ending import Looping
from tests.workers.scripted import Scripted


def text(events: list[Event], phase: str) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.phase == phase)


@pytest.mark.parametrize(("policy", "run"), RUNS)
async def test_a_replay_repeats_a_request(policy: Policy, run: dict[str, Any]) -> None:
    recording, events, ended = await record(policy, **run)
    assert (recording.messages, recording.steps) == (QUESTION, ended.steps)
    assert dumps(recording).isascii()
    assert read_again(recording) == recording
    again = [event async for event in replayed(recording, policy)]
    for phase in ("thought", "answer"):
        assert text(again, phase) == text(events, phase)
    assert isinstance(again[-1], RequestCompleted)
    assert again[-1].transcript == ended.transcript
    assert (await compare(recording, policy))[1:] == (None, True)


async def test_a_thought_that_the_loop_broke_off_is_replayed() -> None:
    policy, looping = LargeOnly(), Looping("Let me think.\n\n", "wait ")
    request = Request("r", QUESTION, limits=Limits(max_tokens=2000))
    recording, _, ended = await recorded(policy, request, {"large": looping, "small": looping})
    assert ended.transcript.forced
    *_, again = [event async for event in replayed(recording, policy)]
    assert isinstance(again, RequestCompleted)
    assert again.transcript == ended.transcript


async def test_who_answers_where_a_context_is_full_is_replayed() -> None:
    policy = Coin(large_probability=0)
    recording, _, ended = await record(policy, context=16)
    assert [part.author for part in ended.transcript.answer] == ["small"]  # not the large model
    await replays(recording, policy, ended)
    full = [one for one in recording.calls if isinstance(one.answer, Refusal)]
    assert {one.worker for one in full} == {"large"}


class Refusing(Scripted):
    """Refuses to answer, if it `shows` after some text."""

    error: BatonError = ContextLengthExceeded("full")
    shows: bool = False

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        if not call.transcript.closed or not criteria.max_tokens:
            async for item in super().generate(call, criteria, sampling, stream=stream):
                yield item
            return
        if self.shows and not call.transcript.reply:
            yield Delta("It is ", (1, 2), (-0.1, -0.1))
        raise self.error


@pytest.mark.parametrize("error", [ContextLengthExceeded("full"), Unsupported("no grammar")])
@pytest.mark.parametrize("shows", [False, True])
async def test_a_request_that_a_worker_refused_to_serve_is_replayed(
    error: BatonError, shows: bool
) -> None:
    """The large one a judgement, the small one to answer."""
    large = Scripted(story=LARGE, failures={0: ContextLengthExceeded("full")})
    small = Refusing(story=SMALL)
    small.error, small.shows = error, shows
    policy, workers = SpecReason(answer_by="small"), {"small": small, "large": large}
    recording, _, ended = await recorded(policy, Request("r", QUESTION), workers)
    assert [one.operation for one in large.calls][:2] == ["classify", "generate"]
    assert [part.author for part in ended.transcript.answer] == ["small"] * shows + ["large"]
    await replays(recording, policy, ended)


async def replays(recording: Recording, policy: Policy, ended: RequestCompleted) -> None:
    *_, again = [event async for event in replayed(recording, policy)]
    assert isinstance(again, RequestCompleted)
    assert again.transcript == ended.transcript
    assert (await compare(recording, policy))[1:] == (None, True)


async def test_a_worker_that_failed_has_said_so() -> None:
    small = Scripted(story=("2+2 is 5.", "5"), failures={0: WorkerUnavailable("gone")})
    workers: dict[Any, Any] = {"small": small, "large": Scripted(story=("2+2 is 4.", "4"))}
    noting = {name: RecordedWorker(name, worker) for name, worker in workers.items()}
    async for _ in solve(SpecReason(), Request("r", QUESTION), noting):
        pass
    assert {name: worker.failed for name, worker in noting.items()} == {
        "small": True,
        "large": False,
    }


async def test_a_recording_grows_with_the_text_not_its_square() -> None:
    sizes = []
    for steps in (50, 200):
        thought = "\n\n".join(f"step {n} says something new" for n in range(steps))
        workers = {name: Scripted(story=(thought, "done")) for name in ("small", "large")}
        recording, _, _ = await recorded(SpecReason(), Request("r", QUESTION), workers)
        sizes.append(len(dumps(recording)))
    assert sizes[1] < 5 * sizes[0]


async def test_another_threshold_replays_as_far_as_answers_go() -> None:
    recording, _, _ = await record(SpecReason(threshold=7), scores=first_good)
    assert (await compare(recording, SpecReason(threshold=8)))[1:] == (None, True)
    steps, difference, ended = await compare(recording, SpecReason(threshold=1))
    assert [step.text for step in steps if step.accepted] == [
        "2+2 is 5.\n\n",
        "and 2 more is 7.\n\n",
    ]
    assert not ended
    said = r"step 2: recorded small's 'and 2 more .* \(rejected, scored 2\), now .* \(accepted"
    assert difference is not None
    with pytest.raises(type(difference), match=said):
        raise difference
    with pytest.raises(CallMissing, match="no answer to generate"):
        async for _ in replayed(recording, Coin(large_probability=1)):
            pass


async def test_steps_that_are_no_longer_made_are_a_difference() -> None:
    recording, _, _ = await record(SpecReason())
    more = replace(recording, steps=(*recording.steps, recording.steps[0]))
    _, difference, ended = await compare(more, SpecReason())
    assert ended
    assert "now nothing" in str(difference)


async def test_a_recording_with_parameters_that_no_longer_exist_is_replayed() -> None:
    recording, _, _ = await record(SpecReason())
    former = replace(recording, parameters={**recording.parameters, "probe": ""})
    assert read_again(former) == recording


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "the key baton_recording"),
        ("[]", "the key baton_recording"),
        ('{"baton_recording": 99}', "the key baton_recording"),
        ('{"baton_recording": 1, "question": "?"}', "not a recording of this version"),
    ],
)
async def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "a.jsonl"
    with pytest.raises(ConfigError, match=r"a\.jsonl: No such file"):
        load(file)
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(file)
    recording, _, _ = await record(SpecReason())
    file.write_text(dumps(recording) + '["small", "no answer"]\n')
    with pytest.raises(ConfigError, match="not a recording"):
        load(file)
