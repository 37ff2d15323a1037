"""Which call ran when, and which calls made a step."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.loop import accumulator, executor
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message
from policies import POLICIES
from policies.specreason import SpecReason
from tests.orchestrator.loop.solving import HeldReader
from tests.orchestrator.serving import STORY
from tests.orchestrator.waiting import until
from tests.workers.scripted import Scripted

QUESTION = (Message("user", "Twice 2+2?"),)


async def response_of(
    policy, small: Scripted, large: Scripted
) -> tuple[ResponseAccumulator, list[list]]:
    """The response to a request, and what was running after each of its events."""
    response = ResponseAccumulator()
    events = solve(policy, Request("r", QUESTION), {"small": small, "large": large}, response)
    running = [[call[:2] for call in response.running] async for _ in events]
    assert len(response.moments) == len(response.steps)
    return response, running


async def test_a_step_names_the_calls_that_drafted_and_judged_it() -> None:
    response, running = await response_of(
        SpecReason(), Scripted(story=STORY), Scripted(story=STORY, scores=[9, 2])
    )
    kinds = [(call.kind, call.worker) for call in response.call_spans]
    assert sorted(kinds[:2]) == [("prefill", "large"), ("prefill", "small")]
    assert kinds[2:7] == [
        ("draft", "small"),
        ("judge", "large"),
        ("draft", "small"),
        ("judge", "large"),
        ("write", "large"),
    ]
    accepted, rejected, rewritten = response.moments[:3]
    assert (accepted.calls, rejected.calls, rewritten.calls) == ((2, 3), (4, 5), ())
    assert response.call_spans[3].probabilities == (*(0.0,) * 9, 1.0)
    assert response.call_spans[5].probabilities == (0.0, 0.0, 1.0, *(0.0,) * 7)
    assert response.call_spans[2].tokens == 4  # First, 2+2 is 4. with the blank line behind it
    assert [("large", "write")] in running
    assert running[-1] == []


@pytest.mark.virtual_time
async def test_a_draft_beside_a_prefill_stands_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, small = [0.0], Scripted(story=STORY)
    for module in (executor, accumulator):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    large = HeldReader(story=STORY, scores=[9, 2])
    task = asyncio.create_task(response_of(SpecReason(), small, large))
    await until(lambda: small.calls and not small.live)
    await asyncio.sleep(0.01)  # the draft waits for the large model, which reads for a minute
    now[0] = 60.0
    large.let.set()
    response, _ = await task
    drafts = [call for call in response.call_spans if call.kind == "draft"]
    judges = [call for call in response.call_spans if call.kind == "judge"]
    assert (drafts[0].at_ms, drafts[0].ms) == (0, 0)
    assert all(call.at_ms == 60_000 for call in judges)  # they waited for their own prefill


async def test_a_text_is_taken_as_it_comes_while_the_other_model_still_reads() -> None:
    """A worker drops a call that nobody reads for a while."""
    taken = []

    class Watched(Scripted):
        async def generate(self, call, criteria, *args, **kw):
            async for item in super().generate(call, criteria, *args, **kw):
                yield item
                taken.append(item)

    large = HeldReader(story=STORY)
    policy = POLICIES["speculative-thinking"]()
    task = asyncio.create_task(response_of(policy, Watched(story=STORY), large))
    await until(lambda: len(taken) >= 4)
    large.let.set()
    await task


async def test_a_prefill_that_ends_beside_the_first_write_does_not_end_it() -> None:
    _, running = await response_of(
        POLICIES["small-only"](), Scripted(story=STORY), Scripted(story=STORY)
    )
    assert running[0] == running[1] == [("small", "write")]  # told of the prefill, then of a text


async def test_the_times_of_calls_lie_within_the_request_and_in_order() -> None:
    delay = 0.003
    response, _ = await response_of(
        SpecReason(), Scripted(story=STORY, delay=delay), Scripted(story=STORY, delay=delay)
    )
    draft, judge = response.call_spans[2:4]
    assert draft.ms >= 4 * delay * 1000
    assert judge.at_ms >= draft.at_ms + draft.ms - 1
    assert response.moments[0].at_ms >= judge.at_ms + judge.ms - 1


async def test_a_call_that_failed_says_how() -> None:
    small = Scripted(story=STORY, failures={0: WorkerUnavailable("gone")})
    response, _ = await response_of(SpecReason(), small, Scripted(story=STORY))
    assert response.call_spans[2].error == "WorkerUnavailable"
    assert response.call_spans[2].probabilities is None
