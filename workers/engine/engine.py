"""Serves many requests at once from one model: admits, prefills, decodes in batches, answers.

All torch work happens in one thread, iteration by iteration. Callers live in asyncio and are woken
once per request, or once per piece of a stream.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from typing import Any

import torch

from orchestrator.errors import BatonError, Overloaded, WorkerError, WorkerUnavailable, describe
from orchestrator.types import Finish
from orchestrator.worker import key_of
from workers.engine.prefill import fitting
from workers.engine.prefix_cache import PrefixCache
from workers.engine.requests import EngineRequest, GenerateRequest
from workers.engine.run_ahead import Ahead, RunAhead
from workers.model.placement import CHUNK
from workers.model.sampling import nan_logits
from workers.model.target import ModelOutput, PromptChunk
from workers.model.tree import Accepted, Row
from workers.speculation.decode import Decoder

log = logging.getLogger(__name__)

COPIED = 8 * CHUNK  # tokens of prefixes copied in an iteration, about


class Engine:
    """One model, its cache and its thread; the options are `workers.options.LoadOptions`.

    The more slots than `rows` the decoder's cache has, the longer prefixes stay cached.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        rows: int,
        queue: int = 64,
        threads: int | None = None,
        run_ahead: int = 0,
    ) -> None:
        self.decoder, self.cache = decoder, decoder.target.cache
        if not 0 < rows <= self.cache.slots:
            raise ValueError(
                f"rows must be from 1 to {self.cache.slots} (the cache's slots), not {rows}"
            )
        self.rows, self.queue, self._threads = rows, queue, threads
        self._prefixes = PrefixCache(decoder)
        self._ahead = RunAhead(run_ahead, decoder.target.max_len)
        self._waiting: deque[EngineRequest] = deque()  # as they came; callers append
        self._prefilling: list[EngineRequest] = []
        self._decoding: dict[int, GenerateRequest] = {}  # by slot
        self._late: list[Row] | None = None  # joined since the round began; None: none may join
        self._broken: Exception | None = None  # by which serving between drafts has failed
        self._read_tokens = self._copied_before = 0  # of this iteration
        decoder.pause_with(self._serve_between_drafts)
        kinds = ("prompt", "cached", "generated", "emitted", "ahead", "adopted")
        self._counts = dict.fromkeys(("rounds", *(f"{kind}_tokens" for kind in kinds)), 0)
        self._closing = self._ending_ahead = False
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # The asyncio side --------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its answer comes through its handle."""
        if not self.alive:
            raise WorkerUnavailable("the engine has stopped")
        present = len(self._waiting) + len(self._prefilling) + len(self._decoding)
        if present >= self.rows + self.queue:  # a burst may wait in rows not yet taken
            raise Overloaded(f"{self.rows} calls are served and {self.queue} waiting already")
        self._waiting.append(request)
        self._work.set()
        if self._closing:  # the thread may have looked at the queue for the last time
            raise WorkerUnavailable("the engine has stopped")

    async def answer(self, request: EngineRequest) -> Any:
        """Submit a request and wait for its answer alone."""
        self.submit(request)
        answer = (await request.handle.items())[-1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def alive(self) -> bool:
        return not self._closing and self._thread.is_alive()

    def stats(self) -> dict[str, int]:
        """Counters since the start (`*_tokens`, `passes`, `rounds`) and gauges of now.

        Mean acceptance length is `emitted_tokens / rounds` (bonus token included). Methods add
        theirs, as in `workers.model.acceptance`.
        """
        gauges = {
            "live_rows": len(self._prefilling) + len(self._decoding),
            "queued": len(self._waiting),
            "rows": self.rows,
            "slots": self.cache.slots,
            "held_tokens": sum(self.cache.lengths),
            "passes": self.decoder.target.passes,
            "lossy": int(not self.decoder.lossless),
        }
        return self._counts | self.decoder.stats() | gauges

    def end_ahead(self) -> None:
        """Let no row run ahead any more that does now, after the step that is being made."""
        self._ending_ahead = True
        self._work.set()

    def close(self) -> None:
        """Stop the thread; requests in progress fail with `WorkerUnavailable`."""
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
                    if not (self._is_serving or self._ahead.running):
                        self._work.wait()
                    self._work.clear()
                    self._iterate()
        except BaseException as error:
            log.error("the engine has stopped by an error: %s", describe(error))
        finally:  # whatever ended the loop, no caller waits for ever
            self._closing = True
            stopped = WorkerUnavailable("the engine has stopped")
            for request in (*self._waiting, *self._prefilling, *self._decoding.values()):
                request.handle.put(stopped)

    @property
    def _is_serving(self) -> bool:
        return bool(self._waiting or self._prefilling or self._decoding)

    def _iterate(self) -> None:
        """One iteration over everything that is live; if nothing is, over what runs ahead."""
        self._read_tokens, self._copied_before = 0, self._prefixes.copied
        self._drop_cancelled()
        self._admit()
        self._prefill()
        self._decode()
        if not self._is_serving:
            self._run_ahead()

    def _serve_between_drafts(self) -> None:
        """Answer calls that need no row, and let new rows join the round that is drafted."""
        if self._late is None or self._broken or not (self._waiting or self._prefilling):
            return
        try:
            self._admit()
            self._prefill()
        except Exception as error:  # the round's rows are not to blame; it ends the thread
            self._broken = error

    def _drop_cancelled(self) -> None:
        """Let go of requests for which no caller waits any more."""
        for request in [*self._waiting, *self._prefilling, *self._decoding.values()]:
            if not request.handle.cancelled:
                continue
            if request.slot < 0:
                self._waiting.remove(request)
            else:
                self._leave(request)

    def _admit(self) -> None:
        """Give waiting requests their slots while rows are free."""
        if self._ending_ahead:
            self._ending_ahead = False
            self._drop_ahead(self._ahead.rows)
        while self._waiting and len(self._prefilling) + len(self._decoding) < self.rows:
            if self._prefixes.copied - self._copied_before > COPIED:
                break
            request = self._next()
            if isinstance(request, GenerateRequest):
                if (ahead := self._ahead.adopt(request)) is not None:
                    self._continue(request, ahead)
                    continue
                self._drop_ahead(self._ahead.rivals(request))
            if self._prefixes.is_full:
                self._drop_ahead(self._ahead.rows[:1])
            self._prefilling.append(request)  # first: whatever fails here, its caller is answered
            request.slot, request.cached = self._prefixes.allocate(
                request.ids, request.num_logits, request.owner
            )
            self._counts["prompt_tokens"] += len(request.ids)
            self._counts["cached_tokens"] += request.cached

    def _next(self) -> EngineRequest:
        """Take the first waiting request whose key has the fewest rows."""
        rows = Counter(key_of(one.owner) for one in (*self._prefilling, *self._decoding.values()))
        first = min(list(self._waiting), key=lambda one: rows[key_of(one.owner)])
        self._waiting.remove(first)
        return first

    def _prefill(self) -> None:
        """Read at most about `CHUNK` tokens of prompts an iteration, for the live rows' sake."""
        for request in [one for one in self._prefilling if self._is_ready(one)]:
            self._end_prefill(request, None)
        if self._prefilling:  # tokens held back are not to wait for these passes
            for decoding in self._decoding.values():
                decoding.handle.flush()
        while self._prefilling:
            chunks = self._next_chunks()
            tokens = sum(len(chunk.tokens) for _, chunk in chunks)
            if self._read_tokens and self._read_tokens + tokens > CHUNK:
                break
            self._read(chunks)
            self._read_tokens += tokens

    def _is_ready(self, request: EngineRequest) -> bool:
        """Whether a prompt needs no separate pass: nothing is left of it, or only its last token,
        which a row's first round reads if that gives what the prefill would."""
        left = len(request.ids) - self.cache.lengths[request.slot]
        if left != 1 or not request.ids or not isinstance(request, GenerateRequest):
            return left == 0
        alike = self.decoder.begins_alike(request.method, request.sampling)
        # For one token alone no drafter need read the prompt.
        return request.max_tokens > 1 and alike

    def _next_chunks(self) -> list[tuple[EngineRequest, PromptChunk]]:
        """The chunks that share the next pass: of the first prompt, and what fits beside it."""
        chunks = [
            self.decoder.target.next_chunk(one.slot, one.ids, num_logits=one.num_logits)
            for one in self._prefilling
        ]
        sizes = [(len(chunk.tokens), self.cache.lengths[chunk.slot]) for chunk in chunks]
        places = fitting(sizes, CHUNK, self.cache.capacity)
        return [(self._prefilling[place], chunks[place]) for place in places]

    def _read(self, chunks: list[tuple[EngineRequest, PromptChunk]]) -> None:
        """One pass over chunks of prompts; a prompt that is through is answered or decoded."""
        target = self.decoder.target
        try:
            outputs = target.extend_all([chunk for _, chunk in chunks])
        except Exception as error:
            if len(chunks) == 1:
                self._fail(chunks[0][0], error)
                return
            for one in chunks:  # one of them is to blame, the others continue
                self._read([one])
            return
        for (request, chunk), output in zip(chunks, outputs, strict=True):
            request.passes += 1
            try:
                if target.has_nan(chunk.slot, len(chunk.tokens)):
                    raise nan_logits()
                if chunk.num_logits and not chunk.final:
                    request.take(output)
            except Exception as error:
                self._fail(request, error)
                continue
            if chunk.final:
                self._end_prefill(request, output)
            else:  # to the end of the line: a short prompt waits for no long one
                self._prefilling.remove(request)
                self._prefilling.append(request)

    def _end_prefill(self, request: EngineRequest, output: ModelOutput | None) -> None:
        """Answer a request whose prompt is cached, or make it a row; `output` is its last pass."""
        try:
            if isinstance(request, GenerateRequest) and request.max_tokens > 0:
                self._join(request, output)
                return
            answer = request.output(output)
        except Exception as error:
            self._fail(request, error)
            return
        self._leave(request)
        request.handle.put(answer)

    def _join(self, request: GenerateRequest, output: ModelOutput | None) -> None:
        """Make a request a row, with its first token if the prefill's `output` gives it."""
        row = Row(
            request.slot,
            request.ids,
            request.sampling,
            request.seed,
            request.max_tokens,
            request.method,
            request.matcher,
            answering=not request.continuation.thinking,
            may_end=request.continuation.may_end,
        )
        accepted = []
        if output is None:
            self.decoder.add(row)
            if self._late is not None:
                self._late.append(row)
        else:
            accepted = [self.decoder.join(row, output)]
        self._prefilling.remove(request)
        self._decoding[request.slot] = request
        if accepted:
            self._append(request, accepted)

    def _continue(self, request: GenerateRequest, ahead: Ahead) -> None:
        """Give a request the row that ran ahead for it, with the tokens that it has already."""
        row, length = ahead.row, len(request.ids)
        request.slot, request.cached = row.slot, length
        row.remaining_tokens = request.max_tokens - (len(row.ids) - length)
        row.may_end = request.continuation.may_end
        self._decoding[row.slot] = request
        self._counts["prompt_tokens"] += length
        self._counts["cached_tokens"] += length
        self._append(request, list(ahead.behind(length)), adopted=True)

    def _run_ahead(self) -> None:
        """One step for rows of one method, so that a new call waits for no more than that."""
        for rows in self.decoder.method_groups(self._ahead.running)[:1]:
            try:
                emitted = self.decoder.step(rows)
            except Exception as error:
                log.error("running ahead failed: %s", describe(error))
                self._reset_ahead(rows)
                continue
            for row, accepted in emitted:
                self._ahead.add(row, accepted)
                self._counts["ahead_tokens"] += len(accepted.tokens)
            self._reset_ahead([row for row, _ in emitted if row.failure is not None])

    def _reset_ahead(self, rows: list[Row]) -> None:
        """End rows that failed, and reset their slots, which may hold NaNs."""
        for row in rows:
            self.cache.reset(row.slot)
        self._drop_ahead(rows)

    def _drop_ahead(self, rows: list[Row]) -> None:
        """End rows that ran ahead; their slots keep what is cached."""
        for row in rows:
            self._ahead.drop(row)
            self.decoder.leave(row)
            self._prefixes.release(row.slot)

    def _decode(self) -> None:
        """One step for each method group; if one fails, the rows of the others continue."""
        live = [row for row in self.decoder.rows if row.slot in self._decoding]
        for rows in self.decoder.method_groups(live):
            self._late = late = list[Row]()
            try:
                emitted = self.decoder.step(rows, late)
            except Exception as error:
                for row in self.decoder.method_groups([*rows, *late])[0]:
                    self._fail(self._decoding[row.slot], error)
                continue
            finally:
                self._late = None
                if self._broken is not None:
                    raise self._broken
            self._counts["rounds"] += len(emitted)
            for row, accepted in emitted:
                self._counts["emitted_tokens"] += len(accepted.tokens)
                request = self._decoding[row.slot]
                request.passes += 1
                if row.failure is not None:
                    self._fail(request, row.failure)
                else:
                    self._append(request, [accepted])

    def _append(
        self, request: GenerateRequest, rounds: list[Accepted], *, adopted: bool = False
    ) -> None:
        """Hand the tokens of rounds to their request and end it if they say so."""
        before, finish = request.generated, None
        try:
            for place, accepted in enumerate(rounds):
                finish = request.append(accepted)
                if finish is not None:
                    rounds = rounds[place:]
                    break
            delta = request.delta(ended=finish is not None)
        except Exception as error:
            self._fail(request, error)
            return
        finally:  # tokens after the end are drafts that came to nothing
            made = request.generated - before
            self._counts["generated_tokens"] += made
            if adopted:
                self._counts["adopted_tokens"] += made
                request.adopted = made
        if finish is not None:
            self._end(request, finish, rounds)
        if delta is not None:
            request.handle.put(delta)
        if finish is not None:
            request.handle.put(request.continuation.segment(finish))

    def _end(self, request: GenerateRequest, finish: Finish, rounds: list[Accepted]) -> None:
        """Let the row of a request that has its answer run ahead, or free its slot."""
        (row,) = [row for row in self.decoder.rows if row.slot == request.slot]
        alike = self.decoder.begins_alike(request.method, request.sampling)
        # No drafter has read the prompt for one token alone (`_is_ready`).
        read = request.max_tokens > 1 or not self.decoder.method_of(request.method).drafts
        if alike and read and self._ahead.keep(row, request, finish, rounds):
            del self._decoding[request.slot]
        else:
            self._leave(request)

    def _leave(self, request: EngineRequest) -> None:
        """Free a request's slot; it keeps its tokens for a later prompt that begins like them."""
        if self._decoding.pop(request.slot, None) is None:
            self._prefilling.remove(request)
        for row in [row for row in self.decoder.rows if row.slot == request.slot]:
            self.decoder.leave(row)
        self._prefixes.release(request.slot, request.kept_length)

    def _fail(self, request: EngineRequest, error: Exception) -> None:
        """End a request that failed, and reset its slot, which may hold NaNs.

        The slot is reset first: an accelerator that is past use fails there again, the thread
        ends, and the callers of all that is still listed as live learn it and call elsewhere.
        """
        self.cache.reset(request.slot)
        self._leave(request)
        if not isinstance(error, BatonError):
            log.error("a call failed in the engine: %s", describe(error))
            error = WorkerError(f"{type(error).__name__}: {error}")
        request.handle.put(error)
