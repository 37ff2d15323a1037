"""Shadow arms: they answer again what was answered, for comparison, and never get in the way.

One at a time, and only while nobody is being answered: a request that comes in cuts a shadow short,
which then starts over. So a shadow costs no request anything, and its times are those of a quiet
machine. What waits too long is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter

from orchestrator.errors import BatonError
from orchestrator.experiments.ledger import Outcome
from orchestrator.experiments.values import compare, final
from orchestrator.loop.events import Event, RequestCompleted, StepCompleted
from orchestrator.loop.policy import Policy
from orchestrator.state.outbox import Outbox
from orchestrator.types import Limits, Message, Sampling

log = logging.getLogger(__name__)

WAITING: Final = 100  # shadows that wait for a quiet moment; the oldest go first
TRIES: Final = 5  # times that a shadow is begun
QUIET_S: Final = 0.02  # seconds between looks whether somebody is being answered


@dataclass(frozen=True, slots=True)
class Repeat:
    """What it takes to ask a question again, and what was answered.

    `speculation` is the large worker's method for the repetition; None: its default.
    """

    trace_id: str
    messages: tuple[Message, ...]
    sampling: Sampling
    limits: Limits
    answer: str
    speculation: str | None = None


@dataclass(slots=True)
class _Job:
    stream: str
    arm: str
    policy: Policy
    repeat: Repeat
    tries: int = field(default=0)


class Shadows:
    """The shadows of one replica. `quiet` is set while nobody is being answered."""

    def __init__(
        self,
        solve: Callable[[Policy, Repeat], AsyncGenerator[Event, None]],
        quiet: asyncio.Event,
        outbox: Outbox,
        registry: CollectorRegistry,
    ) -> None:
        self._solve, self._quiet, self._outbox = solve, quiet, outbox
        self._jobs: deque[_Job] = deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._count = Counter(
            "baton_shadows",
            "Shadow arms that answered, failed, or were dropped because there was no quiet moment.",
            ("ended",),
            registry=registry,
        )

    def add(self, stream: str, arm: str, policy: Policy, repeat: Repeat) -> None:
        """Answer a question again when there is time."""
        self._jobs.append(_Job(stream, arm, policy, repeat))
        while len(self._jobs) > WAITING:
            self._jobs.popleft()
            self._count.labels("dropped").inc()
        self._news.set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._jobs:
                await self._quiet.wait()
                if self._jobs:
                    await self._try(self._jobs.popleft())

    async def _try(self, job: _Job) -> None:
        job.tries += 1
        task = asyncio.create_task(self._answer(job))
        try:
            while not task.done() and self._quiet.is_set():
                await asyncio.wait({task}, timeout=QUIET_S)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            if job.tries < TRIES:
                self._jobs.append(job)
            else:
                self._count.labels("dropped").inc()
            return
        outcome = task.result()
        self._count.labels(outcome.status).inc()
        self._outbox.event(job.stream, outcome.model_dump())

    async def _answer(self, job: _Job) -> Outcome:
        began, first, ended = perf_counter(), None, None
        told: dict[str, Any] = {"trace_id": job.repeat.trace_id, "arm": job.arm, "shadow": True}
        try:
            async with aclosing(self._solve(job.policy, job.repeat)) as events:
                async for event in events:
                    if isinstance(event, StepCompleted) and event.step.accepted and first is None:
                        first = (perf_counter() - began) * 1000
                    elif isinstance(event, RequestCompleted):
                        ended = event
        except BatonError as error:
            log.info("a shadow of %s failed: %s", job.repeat.trace_id, type(error).__name__)
        if ended is None:
            return Outcome(**told, at=time.time(), status="failed")
        answer = "".join(segment.text for segment in ended.transcript.answer)
        metrics = ended.metrics
        return Outcome(
            **told,
            at=time.time(),
            ms=metrics.ms["total"],
            first_step_ms=first,
            small_tokens=metrics.small_tokens,
            large_tokens=metrics.large_tokens,
            prompt_tokens=max(0, metrics.prefill_tokens),
            accepted=metrics.acceptance_rate,
            agreement=compare(answer, final(job.repeat.answer)),
        )
