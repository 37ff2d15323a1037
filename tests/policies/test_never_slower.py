"""SpecReason on account: when it goes on sharing and when it stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.evaluation.recording import RecordedRequest, Recording, dumps, loads
from deploy.evaluation.replay import replay
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import Accept, Account, Classify, Generate, Recent, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.recent import RecentCost
from orchestrator.loop.solve import solve
from orchestrator.types import Cost, Limits, Message, Sampling, StopCriteria, Transcript
from policies.never_slower import NeverSlower
from policies.steps import REST
from tests.policies.plays import TRACE, Play, digit, draft, step
from workers.scripted import Scripted

SPAN = StopCriteria(512, until=("\n\n",))


class Shared:
    """Plays shared steps: the large model takes 10 ms a token, a shared token what is said."""

    def __init__(self, recent: Cost = Cost(), **parameters: Any) -> None:  # noqa: B008
        self.play = Play(NeverSlower(**{"margin": 1.2, **parameters}))
        assert self.play.first == Recent()
        self.play(recent)
        self.transcript, self.cost = TRACE, Cost(large_ms=50)  # the preflight is nobody's step
        self.count = 0

    def by_large(self, tokens: int = 4, ms_each: float = 10.0) -> None:
        assert self.play.asked == Account()
        write = self.play(self.cost)
        assert write == Write("large", self.transcript, SPAN)
        self._add("large", tokens)
        self.cost = Cost(
            self.cost.small_ms,
            self.cost.large_ms + ms_each * tokens,
            self.cost.judge_ms,
            self.cost.small_tokens,
            self.cost.large_tokens + tokens,
        )
        assert self.play(self.transcript) == Account()
        self.play(self.cost)

    def kept(self, ms_each: float, tokens: int = 4) -> None:
        assert self.play.asked == Account()
        assert isinstance(self.play(self.cost), Generate)
        text = self._text(tokens)
        assert isinstance(self.play(draft(text)), Classify)
        accept = self.play(digit(9))
        assert isinstance(accept, Accept)
        self.transcript = self.transcript.extend(accept.segment)
        half = ms_each * tokens / 2
        self.cost = Cost(
            self.cost.small_ms + half,
            self.cost.large_ms,
            self.cost.judge_ms + half,
            self.cost.small_tokens + tokens,
            self.cost.large_tokens,
        )
        assert self.play(self.transcript) == Account()
        self.play(self.cost)

    @property
    def alone(self) -> bool:
        return self.play.asked == Write("large", self.transcript, REST)

    def _add(self, author: str, tokens: int) -> None:
        self.transcript = self.transcript.extend(step(author, self._text(tokens)))

    def _text(self, tokens: int) -> str:
        self.count += 1
        return " ".join(f"{self.count}" for _ in range(tokens)) + "\n\n"


def test_sharing_goes_on_while_it_is_cheaper() -> None:
    shared = Shared(evidence_steps=1, evidence_tokens=1, patience=1)
    shared.by_large()
    for _ in range(20):
        shared.kept(ms_each=12)  # exactly the margin
    assert not shared.alone


def test_sharing_that_costs_more_is_given_up_for_good() -> None:
    shared = Shared(evidence_steps=1, evidence_tokens=1, patience=2)
    shared.by_large()
    shared.kept(ms_each=13)
    assert not shared.alone
    shared.kept(ms_each=13)
    assert shared.alone
    assert shared.play(shared.transcript.extend(step("large", "9 9"))) == Write(
        "large", shared.transcript.extend(step("large", "9 9")), REST
    )


def test_one_good_step_begins_the_patience_anew() -> None:
    shared = Shared(evidence_steps=1, evidence_tokens=1, patience=2)
    shared.by_large()
    shared.kept(ms_each=13)
    shared.kept(ms_each=2)
    shared.kept(ms_each=50)
    assert not shared.alone
    shared.kept(ms_each=50)
    assert shared.alone


def test_nothing_is_decided_without_evidence() -> None:
    shared = Shared(evidence_steps=3, evidence_tokens=8, patience=1)
    shared.by_large(tokens=4)
    for _ in range(5):  # enough steps, too few of the large model's tokens
        shared.kept(ms_each=99)
    assert not shared.alone
    shared = Shared(evidence_steps=3, evidence_tokens=4, patience=1)
    shared.by_large(tokens=4)
    shared.kept(ms_each=99)
    shared.kept(ms_each=99)
    assert not shared.alone
    shared.kept(ms_each=99)
    assert shared.alone


BUSY = Cost(small_ms=4000, large_ms=1000, judge_ms=500, small_tokens=400, large_tokens=100)
"""A drafted token with its judgement takes 11.25 ms, one of the large model's 10."""


def test_where_others_pay_more_for_drafts_than_they_save_nothing_is_shared() -> None:
    assert Shared(BUSY).alone
    saved = 0.7 + 0.2  # the part that stays, and what the margin allows beyond the large model
    assert not Shared(replace(BUSY, small_ms=400 * saved * 10 - 501)).alone
    assert Shared(replace(BUSY, small_ms=400 * saved * 10 - 499)).alone
    # A large model that is busier still makes drafts worth their price.
    assert not Shared(replace(BUSY, large_ms=2000)).alone
    assert Shared(replace(BUSY, large_ms=2000), acceptance=0.3).alone


def test_drafts_that_are_few_beside_the_large_models_tokens_prove_nothing() -> None:
    assert Shared(replace(BUSY, large_tokens=4000, large_ms=40000)).alone
    assert not Shared(replace(BUSY, large_tokens=4001, large_ms=40010)).alone


@pytest.mark.parametrize("name", ["small_tokens", "large_tokens"])
def test_what_few_tokens_of_others_cost_decides_nothing(name: str) -> None:
    assert Shared(replace(BUSY, **{name: 64}, small_ms=4e6)).alone
    assert not Shared(replace(BUSY, **{name: 63}, small_ms=4e6)).alone


def test_without_a_step_of_the_large_model_there_is_nothing_to_compare_with() -> None:
    shared = Shared(first_n=0, evidence_steps=1, evidence_tokens=1, patience=1)
    for _ in range(10):
        shared.kept(ms_each=1e6)
    assert not shared.alone


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("margin", 0.9),
        ("margin", 11),
        ("evidence_steps", 0),
        ("evidence_tokens", 0),
        ("patience", 0),
        ("threshold", 11),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        NeverSlower(**{name: value})
    assert caught.value.errors()[0]["loc"] == (name,)


STORY = ("".join(f"step {n} is right.\n\n" for n in range(9)) + "that is all.", "It is nine.")
QUICK = {"evidence_steps": 2, "evidence_tokens": 4, "patience": 1}


async def run(
    policy: Policy, small: Scripted, large: Scripted
) -> tuple[Recording, RequestCompleted]:
    asked = RecordedRequest("r", "never-slower", (Message("user", "how many?"),))
    workers: Any = {"small": small, "large": large}
    events = solve(
        policy, asked.messages, workers, request="r", sampling=Sampling(), limits=Limits()
    )
    heard = [event async for event in events]
    ended = heard[-1]
    assert isinstance(ended, RequestCompleted)
    return Recording(asked, tuple(e for e in heard if not isinstance(e, TextDelta))), ended


@pytest.mark.asyncio
@pytest.mark.parametrize(("small_s", "large_s"), [(0.02, 0.0), (0.0, 0.05)])
async def test_the_account_is_measured_and_replays(small_s: float, large_s: float) -> None:
    """Delays a hundred times apart: which side is slower is no matter of luck."""
    small = Scripted(story=STORY, delay=small_s)
    large = Scripted(story=STORY, delay=large_s)
    recording, ended = await run(NeverSlower(**QUICK), small, large)
    authors = [segment.author for segment in ended.transcript.thought]
    if small_s:
        assert authors == ["large", "small", "small", "large"]
    else:
        assert authors == ["large"] + ["small"] * 9
    assert ended.transcript.text == STORY[0]
    again = loads(dumps(recording))
    heard = [e for e in replay(again, NeverSlower(**QUICK)) if not isinstance(e, TextDelta)]
    assert tuple(heard) == recording.events
    asked = [
        e for e in again.events if isinstance(e, ActionCompleted) and isinstance(e.action, Account)
    ]
    assert asked


@pytest.mark.asyncio
async def test_a_recording_from_before_replays() -> None:
    recording, _ = await run(
        NeverSlower(**QUICK), Scripted(story=STORY, delay=0.02), Scripted(story=STORY)
    )
    asked = [e for e in recording.events if isinstance(e, ActionCompleted)]
    assert [e.answer for e in asked if isinstance(e.action, Recent)] == [Cost()]
    before = tuple(
        e
        for e in recording.events
        if not (isinstance(e, ActionCompleted) and isinstance(e.action, Recent))
    )
    heard = [
        e
        for e in replay(replace(recording, events=before), NeverSlower(**QUICK))
        if not isinstance(e, TextDelta)
    ]
    calls = [e for e in heard if isinstance(e, ActionCompleted)]
    assert [(e.action, e.answer) for e in calls] == [(e.action, e.answer) for e in asked]


@pytest.mark.asyncio
async def test_a_crowded_small_pool_sends_its_work_to_the_large_one_until_it_is_not() -> None:
    now = [0.0]
    recent = RecentCost(clock=lambda: now[0])
    large = Scripted(story=STORY, delay=0.001)

    async def authors(small_s: float) -> set[str]:
        workers: Any = {"small": Scripted(story=STORY, delay=small_s), "large": large}
        events = solve(
            NeverSlower(recent_tokens=4, answer_by="small"),
            (Message("user", "how many?"),),
            workers,
            request="r",
            sampling=Sampling(),
            limits=Limits(),
            recent=recent,
        )
        ended = [event async for event in events][-1]
        assert isinstance(ended, RequestCompleted)
        return {segment.author for segment in ended.transcript.thought}

    assert await authors(0.05) == {"small", "large"}  # nobody knew
    assert await authors(0.05) == {"large"}
    recent.add(Cost(large_ms=1e4, large_tokens=1000))
    assert await authors(0.0) == {"small", "large"}  # to see what it costs now
    now[0] += 1000  # what is known has faded
    recent.add(Cost(small_ms=100, large_ms=1e4, small_tokens=100, large_tokens=100))
    assert await authors(0.0) == {"small", "large"}


@pytest.mark.asyncio
async def test_a_small_model_that_keeps_dying_is_waited_for_at_most_so_long() -> None:
    gone = WorkerUnavailable("gone")

    def dead(transcript: Transcript, criteria: StopCriteria) -> Any:
        return gone

    recording, ended = await run(
        NeverSlower(**QUICK), Scripted(dead), Scripted(story=STORY, delay=0.001)
    )
    assert (ended.transcript.text, ended.transcript.done) == (STORY[0], True)
    assert recording.ended == ended
