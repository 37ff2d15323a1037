"""Shadow arms: they answer served requests again, for comparison.

One runs at a time, and only while this orchestrator answers no request: a new request cancels the
shadow, which later starts again. So shadows delay none of its requests, and with one orchestrator
their times are those of an idle machine. Other orchestrators share the workers, so their requests
and these shadows wait for each other. If too many shadows wait, the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from orchestrator.answers.equality import agree
from orchestrator.background import Background, deadline, stop
from orchestrator.errors import BatonError, describe
from orchestrator.experiments.outcome_log import Outcome
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.state.outbox import Outbox

log = logging.getLogger(__name__)

WAITING: Final = 100  # shadows that wait; the oldest are dropped first
TRIES: Final = 5  # attempts at a shadow, before it is dropped
POLL_S: Final = 0.02  # seconds between two checks for a request


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A served request to answer again, its answer, and its cap on the thought in tokens."""

    asked: Request
    answer: str
    thought_cap: int | None = None


Solve = Callable[[Policy, ShadowRequest, ResponseAccumulator], AsyncGenerator[Event, None]]
"""Answers a served request again by another policy."""


@dataclass(slots=True)
class _ShadowJob:
    stream: str
    arm: str
    policy: Policy
    request: ShadowRequest
    tries: int = 0


class ShadowRunner(Background):
    """Runs the shadows of one replica. `idle` is set while no request is being answered."""

    def __init__(
        self, solve: Solve, idle: asyncio.Event, outbox: Outbox, registry: CollectorRegistry
    ) -> None:
        self._solve, self._idle, self._outbox = solve, idle, outbox
        self._jobs: deque[_ShadowJob] = deque()
        self._added = asyncio.Event()
        self._count = Counter(
            "baton_shadows",
            "Shadow arms that answered, failed, or were dropped because the replica was busy.",
            ("ended",),
            registry=registry,
        )

    def add(self, stream: str, arm: str, policy: Policy, request: ShadowRequest) -> None:
        """Queue a request for a shadow arm."""
        self._jobs.append(_ShadowJob(stream, arm, policy, request))
        while len(self._jobs) > WAITING:
            self._jobs.popleft()
            self._count.labels("dropped").inc()
        self._added.set()

    async def _work(self) -> None:
        while True:
            await self._added.wait()
            self._added.clear()
            while self._jobs:
                await self._idle.wait()
                if self._jobs:
                    await self._try(self._jobs.popleft())

    async def _try(self, job: _ShadowJob) -> None:
        job.tries += 1
        task = asyncio.create_task(self._answer(job))
        try:
            while not task.done() and self._idle.is_set():
                await asyncio.wait({task}, timeout=POLL_S)
        finally:
            await stop(task)
        if task.cancelled():
            if job.tries < TRIES:
                self._jobs.append(job)
            else:
                self._count.labels("dropped").inc()
            return
        try:
            outcome = task.result()
            self._outbox.event(job.stream, outcome.model_dump())
        except Exception as error:  # an error must not end the task of all shadows
            log.error("a shadow of %s failed: %s", job.request.asked.id, describe(error))
            self._count.labels("failed").inc()
        else:
            self._count.labels(outcome.status).inc()

    async def _answer(self, job: _ShadowJob) -> Outcome:
        asked, response = job.request.asked, ResponseAccumulator()
        answering = self._solve(job.policy, job.request, response)
        try:
            async with deadline(asked.limits.deadline_s), aclosing(answering) as events:
                async for _ in events:
                    pass
        except BatonError as error:
            log.info("a shadow of %s failed: %s", asked.id, type(error).__name__)
        metrics = response.metrics
        agrees: bool | None = None
        if finished := response.completed is not None:
            agrees = await asyncio.to_thread(agree, response.answer, job.request.answer)
        return Outcome(
            trace_id=asked.id,
            at=time.time(),
            arm=job.arm,
            shadow=True,
            status="finished" if finished else "failed",
            ms=response.ms if finished else None,
            first_step_ms=response.first_step_ms,
            small_tokens=metrics.small_tokens,
            large_tokens=metrics.large_tokens,
            prompt_tokens=max(0, metrics.prefill_tokens),
            accepted=metrics.acceptance_rate,
            agreement=agrees,
        )
