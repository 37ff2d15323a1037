"""Remembered answers: the same events as a live run, and only new questions reach a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deploy.evaluation.cached_worker import CachedWorker
from deploy.evaluation.calls import AnsweredCall, generation_key
from deploy.evaluation.recording import CallMissing, NoModel
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Constraint,
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta, Worker
from policies.specreason import SpecReason
from tests.workers.scripted import Scripted

ASKED = (Message("user", "2 + 2?"),)
STORY = ("First, 2+2=4.\n\nIt is even.\n\nSo it is four.", "4")
SCORES = {"First, 2+2=4.\n\n": 9.0, "First, 2+2=4.\n\nIt is even.\n\n": 5.0}


def pair() -> dict[str, Scripted]:
    return {
        "small": Scripted(story=STORY),
        "large": Scripted(story=STORY, scores=lambda transcript: SCORES.get(transcript.text, 7.0)),
    }


async def events(policy: Policy, workers: Mapping[Any, Worker]) -> list[Event]:
    request = Request("r", ASKED, limits=Limits(100))
    return [event async for event in solve(policy, request, workers)]


def texts(found: list[Event]) -> str:
    return "".join(event.text for event in found if isinstance(event, TextDelta))


def cached(workers: Mapping[str, Scripted]) -> dict[WorkerName, CachedWorker]:
    return {
        "small": CachedWorker(workers["small"]),
        "large": CachedWorker(workers["large"]),
    }


@pytest.mark.parametrize("threshold", [0.0, 5.0, 6.0, 8.0, 10.0])
async def test_every_threshold_is_what_a_live_run_says(threshold: float) -> None:
    workers, policy = pair(), SpecReason(threshold=threshold)
    remembered = cached(workers)
    for other in (0.0, 5.0, 10.0):
        await events(SpecReason(threshold=other), remembered)
    found, live = await events(policy, remembered), await events(policy, pair())
    assert texts(found) == texts(live)
    ended, expected = found[-1], live[-1]
    assert isinstance(ended, RequestCompleted)
    assert isinstance(expected, RequestCompleted)
    assert ended.transcript == expected.transcript
    assert ended.metrics.large_tokens == expected.metrics.large_tokens


async def test_what_was_asked_before_reaches_no_model() -> None:
    remembered = cached(pair())
    await events(SpecReason(threshold=5), remembered)
    counted = [(cache.live, cache.replayed) for cache in remembered.values()]
    await events(SpecReason(threshold=4), remembered)  # the same decisions
    for (live, replayed), cache in zip(counted, remembered.values(), strict=True):
        assert (cache.live, cache.replayed) == (live, replayed + live)


async def test_only_what_a_changed_decision_leads_to_is_asked() -> None:
    workers = pair()
    workers["large"].story = (STORY[0].replace("It is even.", "Four is even."), STORY[1])
    remembered = cached(workers)
    await events(SpecReason(threshold=5), remembered)
    before = len(workers["small"].calls)
    await events(SpecReason(threshold=6), remembered)  # the second draft falls
    asked = [made.call.transcript.text for made in workers["small"].calls[before:]]
    assert asked == ["First, 2+2=4.\n\nFour is even.\n\n"]  # the third step, after another second


async def generated(cache: CachedWorker, sampling: Sampling, size: int = 50) -> Generation:
    call, criteria = Call("r", Transcript(ASKED)), StopCriteria(size, ("\n\n",))
    (item,) = [i async for i in cache.generate(call, criteria, sampling, stream=False)]
    assert isinstance(item, Generation)
    return item


async def test_chance_is_not_remembered_without_a_seed() -> None:
    cache = CachedWorker(Scripted(story=STORY))
    for sampling, calls in (
        (Sampling(1.0), 1),
        (Sampling(1.0), 2),
        (Sampling(1.0, seed=3), 3),
        (Sampling(1.0, seed=3), 3),
        (Sampling(1.0, seed=4), 4),
        (Sampling(0.0), 5),
        (Sampling(0.0, seed=9), 5),
    ):
        await generated(cache, sampling)
        assert cache.live == calls, sampling


async def test_a_generation_that_ended_by_itself_serves_every_cap_that_holds_it() -> None:
    cache = CachedWorker(Scripted(story=STORY))
    assert (await generated(cache, Sampling())).segment.finish == "until"
    assert (await generated(cache, Sampling(), 2)).segment.text == "First, 2+2=4.\n\n"
    assert (cache.live, cache.replayed) == (1, 1)
    for _ in range(2):
        assert (await generated(cache, Sampling(), 1)).segment.finish == "length"
    assert (cache.live, cache.replayed) == (2, 2)


async def test_a_text_that_a_reader_broke_off_is_given_once() -> None:
    """If its reader reads on, the whole answer to the same call follows."""
    call, criteria = Call("r", Transcript(ASKED)), StopCriteria(50, ("\n\n",))
    whole = await generated(CachedWorker(Scripted(story=STORY)), Sampling())
    part = Delta("First, ", (1,))
    key = generation_key(call, criteria, Sampling())
    assert key is not None
    for answers, read in (((part, whole), [part, whole]), ((whole, part), [whole])):
        known = [AnsweredCall("small", key, 50, answer) for answer in answers]
        cache = CachedWorker(NoModel("small"), "small", known)
        assert [item async for item in cache.generate(call, criteria, Sampling())] == read
        assert await generated(cache, Sampling()) == whole
        assert (cache.live, cache.replayed) == (0, 2)

    cache = CachedWorker(NoModel("small"), "small", [AnsweredCall("small", key, 50, part)])
    items = cache.generate(call, criteria, Sampling())
    assert await anext(items) == part
    with pytest.raises(CallMissing):
        await anext(items)


async def test_an_answer_that_had_to_match_a_form_serves_no_other_call() -> None:
    closed = Transcript(ASKED, closed=True)
    form = Constraint("regex", "[0-9]+")
    worker = CachedWorker(Scripted(story=("", "4")))
    for constraint in (form, None, form, None):
        call = Call("r", closed, constraint=constraint)
        async for _ in worker.generate(call, StopCriteria(9), Sampling()):
            pass
        await worker.verify(call, Segment("small", "4"), Sampling())
    assert (worker.live, worker.replayed) == (4, 4)
