"""The runner of shadow arms: what fails is counted, and the next one is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import WorkerError, WorkerUnavailable
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner, Solve
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message
from policies import POLICIES
from tests.orchestrator.serving import scripted
from tests.orchestrator.waiting import until


def request(trace: str) -> ShadowRequest:
    question = (Message("user", "Twice 2+2?"),)
    return ShadowRequest(Request(trace, question), "The answer is 8.")


Events = AsyncGenerator[Event, None]


async def outcomes(solve: Solve, *traces: str) -> tuple[list[dict[str, Any]], CollectorRegistry]:
    """The outcomes of a shadow of each request, and the counts."""
    registry, idle, events = CollectorRegistry(), asyncio.Event(), list[dict[str, Any]]()
    idle.set()

    class Kept:
        def event(self, stream: str, event: dict[str, Any]) -> None:
            events.append(event)

    outbox: Any = Kept()
    runner = ShadowRunner(solve, idle, outbox, registry)
    await runner.start()
    for trace in traces:
        runner.add("outcomes/trial/1", "ghost", POLICIES["small-only"](), request(trace))
    await until(lambda: any(event["trace_id"] == traces[-1] for event in events))
    await runner.stop()
    return events, registry


async def test_a_shadow_that_fails_has_cost_what_it_made() -> None:
    small = scripted(deaths={0: 3}, failures={1: WorkerUnavailable("gone")})

    def answer(policy: Policy, asked: ShadowRequest, *more: Any) -> Events:
        return solve(policy, asked.asked, {"small": small}, *more)

    (outcome,), _ = await outcomes(answer, "bad")
    assert (outcome["status"], outcome["small_tokens"]) == ("failed", 3)
    assert outcome["ms"] is None


@pytest.mark.parametrize(
    ("failure", "recorded"), [(WorkerError("gone"), "failed"), (ValueError("odd"), None)]
)
async def test_a_shadow_that_fails_ends_no_other(failure: Exception, recorded: str | None) -> None:
    async def answer(policy: Policy, asked: ShadowRequest, *more: Any) -> Events:
        if asked.asked.id == "bad":
            raise failure
        workers: Any = {"small": scripted(), "large": scripted()}
        async for event in solve(policy, asked.asked, workers, *more):
            yield event

    events, registry = await outcomes(answer, "bad", "good")
    told = {event["trace_id"]: event["status"] for event in events}
    assert told == {"good": "finished"} | ({"bad": recorded} if recorded else {})
    for ended in ("failed", "finished"):
        assert registry.get_sample_value("baton_shadows_total", {"ended": ended}) == 1
