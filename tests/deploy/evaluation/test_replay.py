"""Replay: a policy's decisions again, without a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.evaluation.recording import Recording, dumps, load, loads
from deploy.evaluation.replay import (
    AnswerMissing,
    ReplayMismatch,
    replay,
    replay_other_policy,
)
from orchestrator.errors import ContextLengthExceeded, WorkerUnavailable
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from policies.advisor import Advisor
from policies.coin import Coin
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import RUNS, first_good, record
from tests.deploy.evaluation.test_recording import FILES

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("policy", "run"), RUNS)
async def test_a_replay_gives_the_same_events(policy: Policy, run: dict[str, Any]) -> None:
    recording, live = await record(policy, **run)
    replayed = list(replay(loads(dumps(recording)), policy))
    assert [e for e in replayed if not isinstance(e, TextDelta)] == list(recording.events)
    for phase in ("thought", "answer"):
        texts = [
            "".join(e.text for e in events if isinstance(e, TextDelta) and e.phase == phase)
            for events in (live, replayed)
        ]
        assert texts[0] == texts[1]


async def test_failures_are_recorded_and_replayed() -> None:
    gone = {0: WorkerUnavailable("gone"), 1: ContextLengthExceeded("full", param="p", code="c")}
    recording, _ = await record(SpecReason(), failures=gone)
    again = loads(dumps(recording))
    errors = [e.answer for e in again.events if isinstance(e, ActionCompleted)]
    assert [str(e) for e in errors if isinstance(e, Exception)] == ["gone", "full"]
    replayed = list(replay(again, SpecReason()))
    assert replayed[-1] == recording.ended


async def test_who_answers_where_a_context_is_full_is_replayed() -> None:
    policy = Coin(large_probability=0)
    recording, _ = await record(policy, context=16)
    assert recording.ended is not None
    (answer,) = recording.ended.transcript.answer
    assert answer.author == "small"  # the large model was to write it
    assert list(replay(loads(dumps(recording)), policy))[-1] == recording.ended


async def test_another_policys_recording_is_refused_by_line() -> None:
    recording, _ = await record(SpecReason(threshold=7), scores=first_good)
    again = loads(dumps(recording))
    with pytest.raises(ReplayMismatch, match=r"line \d+: recorded Accept.*asks Reject") as caught:
        list(replay(again, SpecReason(threshold=9.5)))
    line = dumps(recording).split("\n")[(caught.value.line or 0) - 1]
    assert json.loads(line)["action"]["$"] == "Accept"


async def test_a_recording_too_short_or_too_long_is_refused() -> None:
    recording, _ = await record(SpecReason())
    short = Recording(recording.request, recording.events[:6])
    with pytest.raises(ReplayMismatch, match="ends where the policy asks"):
        list(replay(short, SpecReason()))
    last = next(e for e in reversed(recording.events) if isinstance(e, ActionCompleted))
    more = Recording(recording.request, (*recording.events, last))
    with pytest.raises(ReplayMismatch, match="the policy has ended"):
        list(replay(more, SpecReason()))


async def test_another_threshold_replays_as_far_as_answers_go() -> None:
    recording, _ = await record(SpecReason(threshold=7), scores=first_good)
    same = list(replay_other_policy(recording, SpecReason(threshold=8)))
    assert [e for e in same if isinstance(e, StepCompleted)] == [
        e for e in recording.events if isinstance(e, StepCompleted)
    ]
    assert isinstance(same[-1], RequestCompleted)
    further = replay_other_policy(recording, SpecReason(threshold=1))
    replayed: list[Event] = []
    with pytest.raises(AnswerMissing, match="Generate"):
        replayed.extend(further)
    accepted = [e.step.text for e in replayed if isinstance(e, StepCompleted)]
    assert accepted == ["2+2 is 5.\n\n", "and 2 more is 7.\n\n"]
    with pytest.raises(AnswerMissing, match="Write"):
        list(replay_other_policy(recording, SpecReason(threshold=9.5)))


async def test_a_recording_of_the_first_version_replays() -> None:
    recording = load(FILES / "specreason.jsonl")
    events = list(replay(recording, SpecReason.model_validate(recording.request.parameters)))
    assert [e for e in events if not isinstance(e, TextDelta)] == list(recording.events)


async def test_advice_replays_as_a_thought() -> None:
    recording = load(FILES / "advice.jsonl")
    events = list(replay(recording, Advisor()))
    shown = [(e.author, e.phase, e.text) for e in events if isinstance(e, TextDelta)]
    assert shown == [("large", "thought", "Add the two."), ("small", "answer", "It is 4.")]
    assert [e for e in events if not isinstance(e, TextDelta)] == list(recording.events)
