"""Serves many calls from one model: admits, reads prompts, decodes in batches, answers.

All torch work happens in one thread, iteration by iteration: take new calls while rows are free,
read one chunk of each new prompt, answer the calls that only read, run the token loop once over
the live rows, retire the rows that ended. Between iterations rows whose caller is gone are
dropped. Callers live in asyncio and are woken once per call, or once per piece of a stream.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import torch

from orchestrator.errors import (
    BatonError,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
    describe,
)
from workers.engine.requests import GenerateJob, Job, expired
from workers.model.cache import common_prefix
from workers.model.tree import Accepted, Row
from workers.speculation.decode import Decoder

log = logging.getLogger(__name__)


class Engine:
    """One model, its cache and its thread.

    Args:
        decoder: target and methods; its cache has at least `rows` slots, the more the longer
            prefixes stay cached.
        rows: most calls served at once; `queue` more may wait, then `Overloaded`.
        lease: seconds after which a call that nobody waits for is dropped.
        threads: intra-op threads of torch in the engine's thread (None: torch's choice).
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        rows: int,
        queue: int = 64,
        lease: float = 10.0,
        threads: int | None = None,
    ) -> None:
        self.decoder, self.cache = decoder, decoder.target.cache
        if not 0 < rows <= self.cache.slots:
            raise ValueError(f"{rows} rows need as many slots, there are {self.cache.slots}")
        self.rows, self.queue, self.lease, self._threads = rows, queue, lease, threads
        self._waiting: deque[Job] = deque()  # first in, first out; appended by callers
        self._reading: list[Job] = []
        self._decoding: dict[int, GenerateJob] = {}  # by slot
        self._idle = dict.fromkeys(range(self.cache.slots))  # least recently used first
        self._counts = dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "generated_tokens", "rounds", "emitted_tokens"), 0
        )
        self._closing = self._forgetting = False
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # The asyncio side --------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a call; its answer comes through its ticket."""
        if not self.alive:
            raise WorkerUnavailable("the engine has stopped")
        present = len(self._waiting) + len(self._reading) + len(self._decoding)
        if present >= self.rows + self.queue:  # a burst may wait in rows not yet taken
            raise Overloaded(f"{self.rows} calls are served and {self.queue} waiting already")
        self._waiting.append(job)
        self._work.set()
        if self._closing:  # the thread may have looked at the queue for the last time
            raise WorkerUnavailable("the engine has stopped")

    async def answer(self, job: Job) -> Any:
        """Submit a call and wait for its answer alone."""
        self.submit(job)
        return (await job.ticket.items())[-1]

    async def stream(self, job: Job) -> AsyncIterator[Any]:
        """Submit a call and yield its deltas, then its answer."""
        self.submit(job)
        try:
            ended = False
            while not ended:
                for item in await job.ticket.items():
                    ended = isinstance(item, tuple)
                    yield item
        finally:
            job.ticket.cancelled = True

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        return not self._closing and self._thread.is_alive()

    def stats(self) -> dict[str, int]:
        """Counters since the start (`*_tokens`, `passes`, `rounds`) and gauges of now.

        Mean acceptance length is `emitted_tokens / rounds` (bonus token included). A method may
        add counters of its own.
        """
        now = {
            "live_rows": len(self._reading) + len(self._decoding),
            "queued": len(self._waiting),
            "rows": self.rows,
            "slots": self.cache.slots,
            "held_tokens": sum(self.cache.lengths),
            "passes": self.decoder.target.passes,
            "lossy": int(not self.decoder.lossless),
        }
        return self._counts | self.decoder.stats() | now

    def forget(self) -> None:
        """Forget the texts of all calls that have ended, before any call that comes after this."""
        self._forgetting = True
        self._work.set()

    def close(self) -> None:
        """Stop the thread; calls in progress fail with `WorkerUnavailable`."""
        self._closing = True
        self._work.set()
        self._thread.join(timeout=30)

    # The engine's thread -----------------------------------------------------------------

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while not self._closing:
                    if not (self._waiting or self._reading or self._decoding):
                        self._work.wait()
                    self._work.clear()
                    self._iterate()
        except BaseException as error:
            log.error("the engine has stopped by an error: %s", describe(error))
        finally:  # whatever ended the loop, nobody waits for ever
            self._closing = True
            stopped = WorkerUnavailable("the engine has stopped")
            for job in (*self._waiting, *self._reading, *self._decoding.values()):
                job.ticket.put(stopped)

    def _iterate(self) -> None:
        """One iteration over everything that is live."""
        self._drop()
        if self._forgetting:
            self._forgetting = False
            for slot in self._idle:
                self.cache.ids[slot], self.cache.lengths[slot] = [], 0
        while self._waiting and len(self._reading) + len(self._decoding) < self.rows:
            job = self._waiting.popleft()
            self._reading.append(job)
            self._place(job)
        for job in list(self._reading):
            try:
                self._read(job)
            except Exception as error:
                self.cache.clear(job.slot)
                self._reading.remove(job)
                self.decoder.rows = [row for row in self.decoder.rows if row.slot != job.slot]
                self._release(job)
                self._fail(job, error)
        if self._decoding:
            self._decode()

    def _drop(self) -> None:
        """Let go of calls that were cancelled or whose lease ran out."""
        now = time.monotonic()
        for job in [job for job in list(self._waiting) if job.ticket.dropped(now)]:
            self._waiting.remove(job)
            job.ticket.put(expired())
        for job in [job for job in self._reading if job.ticket.dropped(now)]:
            self._reading.remove(job)
            self._release(job)
            job.ticket.put(expired())
        for decoding in [job for job in self._decoding.values() if job.ticket.dropped(now)]:
            self._retire(decoding)
            decoding.ticket.put(expired())

    def _place(self, job: Job) -> None:
        """Give the call the idle slot that holds most of its prompt.

        Where that would destroy a longer text of which the prompt shares only the beginning, or
        where the best slot is busy, the common part is copied to the slot idle for longest.
        """
        cache, lengths = self.cache, self.cache.lengths
        held = [
            common_prefix(ids[:length], job.ids)
            for ids, length in zip(cache.ids, lengths, strict=True)
        ]
        best = max(range(cache.slots), key=held.__getitem__)
        slot = best
        if best not in self._idle or lengths[best] > 2 * held[best]:
            slot = next(iter(self._idle))
            if held[best] > held[slot]:
                self.decoder.copy(best, slot, held[best])
        del self._idle[slot]
        job.slot = slot
        job.cached = cache.claim(slot, job.ids, len(job.ids) - job.last)
        self._counts["prompt_tokens"] += len(job.ids)
        self._counts["cached_tokens"] += job.cached

    def _read(self, job: Job) -> None:
        """Read the next chunk of a prompt; after the last, answer the call or make it a row."""
        result = None
        if self.cache.lengths[job.slot] < len(job.ids):
            job.passes += 1
            result = self.decoder.read(job.slot, job.ids, last=job.last)
            if result is None:
                return
        if isinstance(job, GenerateJob) and job.room > 0:
            assert result is not None
            if not job.doubts(result):
                job.row = Row(job.slot, job.ids, job.sampling, job.seed, job.room, job.method)
                accepted = self.decoder.join(job.row, result)
                self._reading.remove(job)
                self._decoding[job.slot] = job
                self._take(job, accepted)
                return
        answer = job.answer(result)
        self._reading.remove(job)
        self._release(job)
        job.ticket.put(answer)

    def _decode(self) -> None:
        """Run the token loop once; where a method fails, the rows of the others go on."""
        for rows in self.decoder.parties():
            try:
                walked = self.decoder.round(rows)
            except Exception as error:
                for row in rows:
                    self._discard(self._decoding[row.slot], error)
            else:
                self._hand_out(walked)

    def _hand_out(self, walked: list[tuple[Row, Accepted]]) -> None:
        self._counts["rounds"] += len(walked)
        for row, accepted in walked:
            self._counts["emitted_tokens"] += len(accepted.tokens)
            job = self._decoding[row.slot]
            job.passes += 1
            self._take(job, accepted)

    def _take(self, job: GenerateJob, accepted: Accepted) -> None:
        """Hand a round's tokens to their call and end it where they say so."""
        self._counts["generated_tokens"] += len(accepted.tokens)
        try:
            finish = job.take(accepted)
            delta = job.delta(ended=finish is not None)
        except Exception as error:
            self._discard(job, error)
            return
        if finish is not None:
            self._retire(job)
        if delta is not None:
            job.ticket.put(delta)
        if finish is not None:
            job.ticket.put(job.finish(finish))

    def _retire(self, job: GenerateJob) -> None:
        assert job.row is not None
        self.decoder.leave(job.row)
        del self._decoding[job.slot]
        self._release(job)

    def _release(self, job: Job) -> None:
        """The slot keeps what it holds; a side branch is cut off."""
        if job.keep is not None:
            self.cache.lengths[job.slot] = min(self.cache.lengths[job.slot], job.keep)
        self._idle[job.slot] = None

    def _discard(self, job: GenerateJob, error: Exception) -> None:
        """End a failed row and forget its slot, which may hold NaNs.

        The slot is forgotten first: an accelerator that is past use fails there again, the thread
        ends, and what is still listed as live then is told so and made again elsewhere.
        """
        self.cache.clear(job.slot)
        self._retire(job)
        self._fail(job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, BatonError):
            log.error("a call failed in the engine: %s", describe(error))
            error = WorkerError(f"{type(error).__name__}: {error}")
        job.ticket.put(error)
