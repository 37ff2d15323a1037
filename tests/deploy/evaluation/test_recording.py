"""Recordings: the exact round trip, and replay without a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.evaluation.recording import (
    AnswerMissing,
    Asked,
    Recorder,
    Recording,
    RecordingError,
    ReplayMismatch,
    dumps,
    loads,
    replay,
    replayable,
)
from orchestrator.errors import ContextLengthExceeded, UnknownPolicy, WorkerUnavailable
from orchestrator.loop.actions import Cancel, First, Generate, Script, Start, Verify
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from policies.answer import write_out
from policies.bild import BiLD
from policies.single import LargeOnly
from policies.specreason import SpecReason
from workers.scripted import Scripted

pytestmark = pytest.mark.asyncio

QUESTION = (Message("system", "Be brief."), Message("user", "2+2? \u2028 ü \ud800 </think>"))
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


class Race(Policy):
    """Two drafts at once, one thrown away, one left running."""

    def solve(self, transcript: Transcript) -> Script[None]:
        one = yield from Start(Generate("small", transcript, StopCriteria(9)))
        two = yield from Start(Generate("large", transcript, StopCriteria(9)))
        three = yield from Start(Generate("large", transcript, StopCriteria(9)))
        _, generation = yield from First((one, two, three))
        yield from Cancel(two)
        yield from write_out(transcript.extend(generation.segment) and transcript, "large")


async def record(
    policy: Policy, scores: Any = (9,), limits: Limits | None = None, **small: Any
) -> tuple[Recording, list[Event]]:
    asked = Asked(
        "r1",
        "specreason",
        QUESTION,
        policy.model_dump(mode="json"),
        Sampling(0.6, seed=3),
        limits or Limits(stop=("END",)),
    )
    workers = {
        "small": Scripted(story=SMALL, **small),
        "large": Scripted(story=LARGE, scores=scores, delay=0.0005),
    }
    heard = solve(
        policy,
        asked.messages,
        workers,  # type: ignore[arg-type]
        request=asked.request,
        sampling=asked.sampling,
        limits=asked.limits,
    )
    events = [event async for event in heard]
    return Recording(asked, tuple(e for e in events if not isinstance(e, TextDelta))), events


def first_good(transcript: Transcript) -> float:
    return 9.0 if len(transcript.thought) == 1 else 2.0


RUNS = [
    (SpecReason(), {"scores": first_good}),
    (SpecReason(threshold=0), {}),
    (SpecReason(scoring="likelihood"), {"scores": (0.5, 9.0)}),
    (SpecReason(budget=4), {}),
    (LargeOnly(), {"limits": Limits(max_tokens=5)}),
    (BiLD(rollback=1.0), {"scores": (2.0,)}),
    (Race(), {}),
]


@pytest.mark.parametrize(("policy", "run"), RUNS)
async def test_the_round_trip_is_exact(policy: Policy, run: dict[str, Any]) -> None:
    recording, _ = await record(policy, **run)
    text = dumps(recording)
    again = loads(text)
    assert again.asked == recording.asked
    assert again.events == recording.events
    assert dumps(again) == text
    assert all(json.loads(line) for line in text.split("\n")[:-1])
    assert text.isascii()


@pytest.mark.parametrize(("policy", "run"), RUNS)
async def test_a_replay_gives_the_same_events(policy: Policy, run: dict[str, Any]) -> None:
    recording, live = await record(policy, **run)
    heard = list(replay(loads(dumps(recording)), policy))
    assert [e for e in heard if not isinstance(e, TextDelta)] == list(recording.events)
    for phase in ("thought", "answer"):
        texts = [
            "".join(e.text for e in events if isinstance(e, TextDelta) and e.phase == phase)
            for events in (live, heard)
        ]
        assert texts[0] == texts[1]


async def test_failures_are_recorded_and_replayed() -> None:
    gone = {0: WorkerUnavailable("gone"), 1: ContextLengthExceeded("full", param="p", code="c")}
    recording, _ = await record(SpecReason(), failures=gone)
    again = loads(dumps(recording))
    errors = [e.answer for e in again.events if isinstance(e, ActionCompleted)]
    assert [str(e) for e in errors if isinstance(e, Exception)] == ["gone", "full"]
    heard = list(replay(again, SpecReason()))
    assert heard[-1] == recording.ended


@pytest.mark.parametrize(
    "error", [WorkerUnavailable("gone"), UnknownPolicy("no", param="model", code="x")]
)
async def test_errors_keep_their_fields(error: Any) -> None:
    action = Verify("large", Transcript(QUESTION), Segment("small", "a", (1,), (-0.1,), "words"))
    events = (
        ActionCompleted(action, error, 1.5),
        ActionCompleted(action, Verification((0.1,), (1, 2)), 0.1),
    )
    back = loads(dumps(Recording(Asked("r", "p", QUESTION), events)))
    first = back.events[0]
    assert isinstance(first, ActionCompleted)
    assert (type(first.answer), vars(first.answer)) == (type(error), vars(error))
    assert str(first.answer) == str(error)
    assert first.action == action
    assert back.events[1] == events[1]


async def test_a_recording_grows_with_the_text_not_its_square() -> None:
    long = "\n\n".join(f"step {n} says something new" for n in range(200))
    sizes = []
    for steps in (50, 200):
        story = ("\n\n".join(long.split("\n\n")[:steps]), "done")
        workers = {"small": Scripted(story=story), "large": Scripted(story=story)}
        events = solve(
            SpecReason(),
            QUESTION,
            workers,  # type: ignore[arg-type]
            request="r",
            sampling=Sampling(),
            limits=Limits(),
        )
        recorder = Recorder(Asked("r", "specreason", QUESTION))
        sizes.append(sum([len(recorder.line(event) or "") async for event in events]))
    assert sizes[1] < 5 * sizes[0]


async def test_another_policys_recording_is_refused_by_line() -> None:
    recording, _ = await record(SpecReason(threshold=7), scores=first_good)
    again = loads(dumps(recording))
    with pytest.raises(ReplayMismatch, match=r"line \d+: recorded Accept.*asks Reject") as caught:
        list(replay(again, SpecReason(threshold=9.5)))
    line = dumps(recording).split("\n")[(caught.value.line or 0) - 1]
    assert json.loads(line)["action"]["$"] == "Accept"


async def test_a_recording_too_short_or_too_long_is_refused() -> None:
    recording, _ = await record(SpecReason())
    short = Recording(recording.asked, recording.events[:6])
    with pytest.raises(ReplayMismatch, match="ends where the policy asks"):
        list(replay(short, SpecReason()))
    last = next(e for e in reversed(recording.events) if isinstance(e, ActionCompleted))
    more = Recording(recording.asked, (*recording.events, last))
    with pytest.raises(ReplayMismatch, match="the policy has ended"):
        list(replay(more, SpecReason()))


async def test_another_threshold_replays_as_far_as_answers_go() -> None:
    recording, _ = await record(SpecReason(threshold=7), scores=first_good)
    same = list(replayable(recording, SpecReason(threshold=8)))
    assert [e for e in same if isinstance(e, StepCompleted)] == [
        e for e in recording.events if isinstance(e, StepCompleted)
    ]
    assert isinstance(same[-1], RequestCompleted)
    further = replayable(recording, SpecReason(threshold=1))
    heard: list[Event] = []
    with pytest.raises(AnswerMissing, match="Generate"):
        heard.extend(further)
    accepted = [e.step.text for e in heard if isinstance(e, StepCompleted)]
    assert accepted == ["2+2 is 5.\n\n", "and 2 more is 7.\n\n"]
    with pytest.raises(AnswerMissing, match="Write"):
        list(replayable(recording, SpecReason(threshold=9.5)))


async def test_jobs_can_be_replayed_by_question() -> None:
    recording, _ = await record(Race())
    last = list(replayable(recording, Race()))[-1]
    assert isinstance(last, RequestCompleted)
    assert recording.ended is not None
    assert last.transcript == recording.ended.transcript


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("{}", "line 1"),
        ('{"baton": 99}', "version 1"),
        ("not json", "line 1"),
        ('{"baton":1,"request":"r","policy":"p","messages":[]}\n{"$":"Nonsense"}', "line 2"),
        ('{"baton":1,"request":"r","policy":"p","messages":[]}\n{"$":7}', "line 2"),
        ('{"baton":1,"request":"r","policy":"p","messages":[]}\n[]', "line 2"),
    ],
)
async def test_what_is_no_recording_is_refused_by_line(text: str, named: str) -> None:
    with pytest.raises(RecordingError, match=named):
        loads(text)
