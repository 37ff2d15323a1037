"""Requests through the step loop, over scripted workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from deploy.evaluation.recording import replayed
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message, StopCriteria
from tests.deploy.evaluation.recorded_runs import recorded
from tests.workers.scripted import Scripted

QUESTION = (Message("user", "what is 2+2+2?"),)
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")
GONE = WorkerUnavailable("gone")
Workers = dict[Any, Any]


class HeldReader(Scripted):
    """A worker that reads the prompt once it is `let`; `early` counts the calls before."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.let, self.early = asyncio.Event(), 0

    async def generate(self, call: Any, criteria: StopCriteria, *args: Any, **kw: Any) -> Any:
        if criteria.max_tokens == 0:
            await self.let.wait()
        self.early += not self.let.is_set()
        async for item in super().generate(call, criteria, *args, **kw):
            yield item

    async def classify(self, *args: Any, **kw: Any) -> Any:
        self.early += not self.let.is_set()
        return await super().classify(*args, **kw)


def pair(**large: Any) -> Workers:
    return {"small": Scripted(story=SMALL), "large": Scripted(story=LARGE, **large)}


def both(worker: Any) -> Workers:
    return {"small": worker, "large": worker}


def start(
    policy: Policy, workers: Workers, response: ResponseAccumulator | None = None, **request: Any
) -> AsyncGenerator[Event, None]:
    return solve(policy, Request("r", QUESTION, **request), workers, response)


async def heard(*args: Any, **request: Any) -> tuple[list[Event], RequestCompleted]:
    """Return the events of a request, and its end."""
    events = [event async for event in start(*args, **request)]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert sum(isinstance(event, RequestCompleted) for event in events) == 1
    return events, ended


def answer(ended: RequestCompleted) -> str:
    return ended.transcript.answer.text()


def shown(events: list[Event], phase: str) -> str:
    texts = [one for one in events if isinstance(one, TextDelta) and one.phase == phase]
    return "".join(one.text for one in texts)


async def replays(policy: Policy, workers: Workers, **request: Any) -> bool:
    """Return whether the recording of a request replays to the same."""
    recording, _, ended = await recorded(policy, Request("r", QUESTION, **request), workers)
    *_, again = [event async for event in replayed(recording, policy)]
    assert isinstance(again, RequestCompleted)
    made, kept = ([replace(step, ms=0.0) for step in own.steps] for own in (again, ended))
    return again.transcript == ended.transcript and made == kept
