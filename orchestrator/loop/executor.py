"""Carries out a policy's actions: the only module that calls workers.

A worker's failure is a result, which is thrown into the policy. Any other error ends the request.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from time import perf_counter
from typing import Any

from orchestrator.background import stop
from orchestrator.errors import (
    ContextLengthExceeded,
    Contradiction,
    InvalidRequest,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.loop.actions import (
    Action,
    Advise,
    Classify,
    Generate,
    Verify,
    WorkerName,
    Write,
)
from orchestrator.loop.answer_room import generated
from orchestrator.loop.budget import Budget
from orchestrator.loop.events import ActionCompleted, PromptsRead, TextDelta
from orchestrator.loop.request import Request
from orchestrator.types import Generation, Sampling, Segment, StopCriteria, Transcript, Usage
from orchestrator.worker import Call, Delta, Worker

log = logging.getLogger(__name__)


class Executor:
    """The calls of one request."""

    def __init__(
        self, workers: Mapping[WorkerName, Worker], request: Request, budget: Budget
    ) -> None:
        self._workers, self._request, self._budget = workers, request, budget
        self._prefills: dict[Generate, asyncio.Task[ActionCompleted]] = {}
        self._calls = 0
        self._drawn: dict[WorkerName, tuple[Transcript, int]] = {}  # by worker: its last text, seed
        self._stopped = False
        self._broke_off: WorkerError | None = None  # of an answer of which some was shown
        # Each call has a seed even if the request has none, so that a retry gives the same text.
        seed = request.sampling.seed
        self._seed = secrets.randbits(53) if seed is None else seed

    async def prefill(self, actions: Sequence[Generate]) -> bool:
        """Have all workers read the prompt at once; return whether a model marks its thought.

        Return as soon as one does: the policy's first action then runs beside the other prefills.
        The policy works around a worker that is down.

        Raises:
            WorkerError: all workers are down.
        """
        self._prefills = {action: asyncio.create_task(self._prefill(action)) for action in actions}
        tasks = set(self._prefills.values())
        failures: list[WorkerError] = []
        thinks = False
        while tasks and not thinks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            answers = [task.result().answer for task in done]
            failures += [one for one in answers if isinstance(one, WorkerError)]
            thinks = any(isinstance(one, Generation) and one.thinks for one in answers)
        if failures and len(failures) == len(actions):
            raise min(failures, key=lambda one: one.worker or "")  # whichever was first
        return thinks

    async def prefilled(self) -> list[ActionCompleted]:
        """Wait for all prefills and return their results, once.

        They fill the workers' caches, count the prompt's tokens, and refuse a prompt that is too
        long before any text is shown.
        """
        if not self._prefills:
            return []
        tasks = list(self._prefills.values())
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        self._prefills = {}
        return [task.result() for task in tasks]

    async def perform(
        self, action: Action[Any]
    ) -> AsyncGenerator[PromptsRead | TextDelta | ActionCompleted, None]:
        """Yield the text of a Write as it comes, and last the result of the action.

        If the request is in a hurry, a Write in the thought is cut short, and other calls there
        have no result. The first action runs beside the prefills, and yields nothing before they
        are done.
        """
        async with aclosing(self._perform(action)) as items:
            if not self._prefills:
                async for item in items:
                    yield item
                return
            # A task reads the items, so that the action runs beside the prefills.
            early: asyncio.Queue[TextDelta | ActionCompleted | None] = asyncio.Queue()
            reading = asyncio.create_task(_read(items, early))
            try:
                yield PromptsRead(await self.prefilled())
                while (taken := await early.get()) is not None:
                    yield taken
                await reading
            finally:
                await _stop(reading)

    async def _perform(
        self, action: Action[Any]
    ) -> AsyncGenerator[TextDelta | ActionCompleted, None]:
        if not isinstance(action, Generate | Write | Classify | Verify):
            yield ActionCompleted(action, None, 0.0)  # the PolicyRunner does the rest
            return
        await self._prefill_of(action.worker)
        if isinstance(action, Write):
            async with aclosing(self._write(action)) as items:
                async for item in items:
                    yield item
            return
        began = perf_counter()
        try:
            answer = await self._unless_hurried(action, self._seed_of(action))
        except (WorkerError, InvalidRequest) as error:
            answer = error
        if answer is None:
            return
        yield ActionCompleted(action, answer, (perf_counter() - began) * 1000)

    def stop_writing(self) -> None:
        """End a Write with its text so far: the answer is complete."""
        self._stopped = True

    async def close(self) -> None:
        """Stop the prefills and wait for them."""
        await _stop(*self._prefills.values())

    async def _write(self, action: Write) -> AsyncGenerator[TextDelta | ActionCompleted, None]:
        # Text that was shown stays. If the worker fails after that, it has written a shorter
        # segment; if it is still down, the policy's call for the rest fails.
        name, transcript, phase = action.worker, action.read, action.phase
        clip = self._budget.clip_advice if isinstance(action, Advise) else self._budget.clip
        criteria = clip(action.transcript, action.criteria)
        seed = self._seed_of(action)
        sampling = self._sampling_of(seed)

        def generate(
            transcript: Transcript, criteria: StopCriteria, streams: bool
        ) -> AsyncGenerator[Delta | Generation, None]:
            call = self._call_for(name, transcript)
            return self._workers[name].generate(call, criteria, sampling, stream=streams)

        stream = generated(self._budget, transcript, criteria, generate)
        watched = self._budget.watches(transcript)
        heard = self._listen(name)
        counted, began = 0, perf_counter()
        answer: Any = None
        failure: WorkerError | None = None

        try:
            with _of(name):
                async for item in stream:
                    if isinstance(item, Generation):
                        text, answer = item.segment.text[len(heard.text) :], item
                        self._drawn[name] = transcript.extend(item.segment), seed
                        heard.tokens = [*item.segment.tokens]
                        heard.text += text
                    else:
                        text = item.text
                        heard.add(item)
                    if text:
                        yield TextDelta(name, phase, text, len(heard.tokens) - counted)
                        counted = len(heard.tokens)
                        if answer is None and (
                            self._stopped
                            or self._hurries(transcript)
                            or (watched and self._budget.due(heard.after(transcript)))
                        ):
                            answer = heard.generation((perf_counter() - began) * 1000)
                    if answer is not None:
                        break
                else:
                    raise WorkerUnavailable(f"the {name} worker's stream broke off")
        except (WorkerError, InvalidRequest) as error:
            if heard.text and isinstance(error, Contradiction):
                raise  # the text that was shown may be wrong, so nothing follows it
            answer = error
            if heard.text and isinstance(error, WorkerError | ContextLengthExceeded):
                log.warning("request %s: %s worker: %s", self._request.id, name, error)
                answer = heard.generation((perf_counter() - began) * 1000)
                if isinstance(error, WorkerError) and len(heard.tokens) < criteria.max_tokens:
                    failure = error
                if phase == "answer":
                    self._broke_off = failure
            elif isinstance(error, Unsupported) and self._broke_off is not None:
                # No server continues a constrained answer: report the failure that interrupted it.
                answer = self._broke_off
        finally:
            await stream.aclose()
        yield ActionCompleted(action, answer, (perf_counter() - began) * 1000, failure)

    async def _prefill(self, action: Generate) -> ActionCompleted:
        began = perf_counter()
        try:
            answer = await self._call(action, 0)
        except (Overloaded, Unsupported):
            raise
        except WorkerError as error:
            return ActionCompleted(action, error, (perf_counter() - began) * 1000)
        return ActionCompleted(action, answer, answer.ms)

    async def _prefill_of(self, name: WorkerName) -> None:
        """Wait for a worker's prefill: a call before its end would read the prompt again."""
        if tasks := [task for one, task in self._prefills.items() if one.worker == name]:
            await asyncio.wait(tasks)

    def _hurries(self, transcript: Transcript) -> bool:
        hurry = self._request.hurry
        return hurry is not None and hurry.is_set and not transcript.closed

    async def _unless_hurried(self, action: Generate | Classify | Verify, seed: int) -> Any:
        """Return the answer to a call; None if the thought is to end before it comes."""
        hurry = self._request.hurry
        if hurry is None or action.transcript.closed:
            return await self._call(action, seed)
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as scope:
                with hurry.waking(lambda: scope.reschedule(now)):
                    return await self._call(action, seed)
        except TimeoutError:
            if not scope.expired():
                raise
        return None

    async def _call(self, action: Generate | Classify | Verify, seed: int) -> Any:
        worker, sampling = self._workers[action.worker], self._sampling_of(seed)
        call = self._call_for(action.worker, action.transcript)
        with _of(action.worker):
            if isinstance(action, Classify):
                return await worker.classify(call, action.query)
            if isinstance(action, Verify):
                return await worker.verify(call, action.segment, sampling)
            criteria = self._budget.clip(action.transcript, action.criteria)
            async with aclosing(worker.generate(call, criteria, sampling, stream=False)) as stream:
                async for item in stream:
                    if isinstance(item, Generation):
                        self._drawn[action.worker] = action.transcript.extend(item.segment), seed
                        return item
            raise WorkerUnavailable(f"the {action.worker} worker's stream broke off")

    def _listen(self, name: WorkerName) -> _Heard:
        before = self._drawn[name][0].last if name in self._drawn else None
        return _Heard(name, "" if before is None else before.tokenizer)

    def _call_for(self, name: WorkerName, transcript: Transcript) -> Call:
        request = self._request
        speculation = request.speculation if name == "large" else None
        constraint = request.limits.constraint if transcript.closed else None
        return Call(
            request.id, transcript, name, speculation, request.owner, constraint, request.session
        )

    def _seed_of(self, action: Generate | Write | Classify | Verify) -> int:
        """Return the seed of a call: that of the worker's last text if this one continues it.

        Workers sample by seed and position, so one seed gives no random number twice, and a worker
        may run ahead of a call. A text that replaces another is sampled with another seed.
        """
        if isinstance(action, Generate | Write) and action.worker in self._drawn:
            text, seed = self._drawn[action.worker]
            if action.transcript.continues(text):
                return seed
        self._calls += 1
        name = f"{self._seed}:{self._calls}".encode()
        return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 11  # fits a double

    def _sampling_of(self, seed: int) -> Sampling:
        sampling = self._request.sampling
        return sampling if sampling.temperature <= 0 else replace(sampling, seed=seed)


@dataclass(slots=True)
class _Heard:
    """What a worker's stream has given so far."""

    worker: WorkerName
    tokenizer: str
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs

    def after(self, transcript: Transcript) -> Transcript:
        """Return the transcript with the text so far."""
        return transcript.extend(Segment(self.worker, self.text))

    def generation(self, ms: float) -> Generation:
        """Return what a call that ends here has generated."""
        known = tuple(self.logprobs) if len(self.logprobs) == len(self.tokens) else ()
        segment = Segment(self.worker, self.text, tuple(self.tokens), known, self.tokenizer)
        return Generation(segment, Usage(generated=len(self.tokens)), ms)


@contextmanager
def _of(worker: WorkerName) -> Iterator[None]:
    """Add a worker's name to its errors."""
    try:
        yield
    except WorkerError as error:
        error.worker = worker
        raise


async def _read(
    items: AsyncIterator[TextDelta | ActionCompleted],
    queue: asyncio.Queue[TextDelta | ActionCompleted | None],
) -> None:
    """Put the items into the queue as they come, and None after the last."""
    try:
        async for item in items:
            queue.put_nowait(item)
    finally:
        queue.put_nowait(None)


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    await stop(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio logs no warning
