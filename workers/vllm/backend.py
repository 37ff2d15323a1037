"""vLLM's engine in this process as a `Backend` (its core is a separate process).

vLLM gets token ids and gives token ids: its text side is off.

Differences from the built-in engine, all of them vLLM's:

- log-probabilities are those at temperature 1, whatever the request's; choices drawn at a
  temperature (but for the last) are taken from the `SHOWN` likeliest tokens
  (`workers.top_logprobs` says within what bounds);
- prefill (a generation of no tokens) makes it generate one, which is dropped;
- a seed draws the same tokens in the same call, and others if its text is made by two.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError, VLLMClientError, VLLMError
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from orchestrator.errors import (
    InvalidRequest,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.grammar import is_free, lark
from orchestrator.types import GREEDY, Finish, Generation, Sampling
from orchestrator.worker import Call, Delta
from workers.backend import Decoding, Prompt, Scoring
from workers.reporting import first_line
from workers.rng import reseeded
from workers.run_ahead import GenerationsAhead
from workers.text.checks import check_length
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.text.verification import Scores
from workers.top_logprobs import Known, estimate, probability
from workers.vllm.counter import EngineCounter
from workers.vllm.requests import (
    SHOWN,
    made_tokens,
    prompt_logprobs,
    prompt_scores,
    request_parameters,
)
from workers.vllm.running import Cost, Running
from workers.vllm.token_ends import TokenEnds

ASKED = ("temperature", "top_p", "top_k", "seed", "max_tokens", "min_tokens")
"""vLLM's parameters that come from a client; the others are the worker's."""
LIKELY = 3
"""The tokens at a doubtful place whose continuations run ahead."""
JUDGE, WRITER = 0, 1
"""Priorities: a judge's call is short, and a whole request waits for it."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine holds: live and waiting sequences; tokens in its cache and in a sequence, and
    those that a request decodes after its call has ended, while no call is live."""

    rows: int
    queue: int
    tokens: int
    context: int
    run_ahead: int = 0


class VllmBackend:
    """Requests to an `AsyncLLM` with a scheduler of `workers.vllm.scheduler`.

    Args:
        ends: the ids that end any text of the model; vLLM refuses those that the model lacks.
        sampling: the checkpoint's defaults, for requests that set none.
        lossy: whether its speculation changes the text.
    """

    methods = ()
    """A call may name none: vLLM is loaded with one, for all calls."""

    def __init__(
        self,
        engine: AsyncLLM,
        prompts: PromptRenderer,
        ends: frozenset[int],
        capacity: Capacity,
        counter: EngineCounter,
        *,
        sampling: Sampling = GREEDY,
        lossy: bool = False,
    ) -> None:
        self.engine, self.prompts, self.ends = engine, prompts, ends
        self.sampling, self.lossy = sampling, lossy
        self._capacity, self._counter = capacity, counter
        self._live, self._closed = 0, False
        self._ahead = GenerationsAhead[Running](capacity.run_ahead)
        self._token_ends = TokenEnds(prompts)
        counted = ("prompt_tokens", "cached_tokens", "generated_tokens", "adopted_tokens")
        self._counts = dict.fromkeys(counted, 0)

    @property
    def context(self) -> int:
        return self._capacity.context

    async def ready(self) -> None: ...

    async def decode(
        self, prompt: Prompt, wanted: Decoding
    ) -> AsyncGenerator[Delta | Generation, None]:
        ids, text = prompt.ids, wanted.text
        finish: Finish | None = None
        cost = Cost(len(ids), prompt.call.owner)
        if text.max_tokens > 0:
            running = await self._ahead.adopt(prompt, (wanted.sampling, text.thinking))
            if running is None:
                running = self._begun(prompt, wanted, cost)
            else:
                running.adopt(cost)
            try:
                while finish is None:
                    made = await running.take()
                    if not made:
                        running = self._begun(prompt, wanted, cost, running)
                    for place, (token, logprobs) in enumerate(made):
                        finish = self._push(text, token, logprobs)
                        if finish is not None:  # a token in doubt is none of the text
                            running.unread = made[place + (finish != "doubt") :]
                            break
                    if wanted.stream and (delta := text.delta(ended=finish is not None)):
                        yield delta
            finally:
                if finish is not None and self._may_go_on(running, text, finish):
                    others = self._others(prompt, wanted, running) if finish == "doubt" else ()
                    self._ahead.keep(prompt, [running, *others])
                else:
                    await running.close()
        elif text.criteria.max_tokens == 0 and len(ids) < self.context:
            await self._answer(ids, request_parameters(Sampling(), max_tokens=1), WRITER, cost)
        adopted = min(cost.found, text.generated)
        self._counts["adopted_tokens"] += adopted
        yield Generation(
            text.segment(finish or "length"),
            replace(cost.usage(), generated=text.generated, adopted=adopted),
            provenance=cost.provenance(text),
        )

    def _push(self, text: Continuation, token: int, logprobs: Mapping[int, float]) -> Finish | None:
        """Take a token; return why the text ends with it, if it does."""
        if token >= len(self.prompts.tokenizer.pieces):
            raise WorkerError(
                f"the model wrote id {token}, and its tokenizer has "
                f"{len(self.prompts.tokenizer.pieces)}: give the tokenizer it belongs to"
            )
        return text.push(token, logprobs[token], probability(max(logprobs.values())))

    def _begun(
        self, prompt: Prompt, wanted: Decoding, cost: Cost, before: Running | None = None
    ) -> Running:
        """Return a request for a call, or for the rest of its text if the one `before` has ended.

        vLLM ends the first one at a token that ends a step, so that no pass runs on, unless the
        request may run ahead from there. If the token ends no step (in code, after a colon), one
        more request follows, which ends with the text alone.
        """
        if before is not None and not before.may_fall_short:
            raise WorkerUnavailable("vLLM ended a generation that was not at its end")
        ids, text = prompt.ids if before is None else before.ids, wanted.text
        limits: dict[str, Any] = {"max_tokens": text.max_tokens - text.generated}
        ends, may_fall_short = text.ends, False
        if text.late_ends:  # the end of a thought, which may come, is found here
            ends = text.late_ends
            limits["min_tokens"] = min(text.criteria.min_tokens, text.max_tokens)
        elif self._may_run_ahead(text, live=0):
            ahead = min(self._ahead.tokens, self.context - len(ids) - limits["max_tokens"])
            limits["max_tokens"] += max(0, ahead)
        elif before is None and prompt.call.constraint is None:
            steps = self._token_ends.of(text.criteria)
            ends, may_fall_short = ends | steps, bool(steps)
        running = self._request(
            prompt, wanted, ids, cost, {"stop_token_ids": sorted(ends), **limits}
        )
        running.may_fall_short = may_fall_short
        return running

    def _others(self, prompt: Prompt, wanted: Decoding, running: Running) -> list[Running]:
        """Begin requests for the other likely tokens at a doubtful place, since another model may
        choose one; the request in doubt continues with the token that it drew."""
        token, logprobs = running.unread[0]
        ids = running.ids[: len(running.ids) - len(running.unread)]
        room = min(LIKELY - 1, self._capacity.rows - self._live)
        ahead = min(self._ahead.tokens, self.context - len(ids) - 1)
        ends = wanted.text.ends
        likely = sorted(logprobs, key=logprobs.__getitem__, reverse=True)
        others = [one for one in likely if one != token and one not in ends][:room]
        if ahead <= 0:
            return []
        limits = {"stop_token_ids": sorted(ends), "max_tokens": ahead}
        begun = []
        for other in others:
            cost = Cost(len(ids) + 1, prompt.call.owner)
            begun.append(self._request(prompt, wanted, [*ids, other], cost, limits))
            begun[-1].begin()
        return begun

    def _request(
        self,
        prompt: Prompt,
        wanted: Decoding,
        ids: Sequence[int],
        cost: Cost,
        limits: Mapping[str, Any],
    ) -> Running:
        """Return a request that continues `ids`; it is sent once it is read, or begun."""
        may_doubt = bool(self._ahead.tokens) and wanted.text.criteria.min_confidence > 0
        parameters = request_parameters(
            reseeded(wanted.sampling, len(ids)),
            logprobs=LIKELY if may_doubt else 1,
            **limits,
            **self._held(prompt.call),
        )
        outputs = self._outputs(ids, parameters, WRITER, prompt.call.owner)
        return Running(list(ids), (wanted.sampling, wanted.text.thinking), outputs, cost)

    def _may_run_ahead(self, text: Continuation, live: int) -> bool:
        """Whether a text's request may run after its call, if exactly `live` are live."""
        return bool(self._ahead.tokens) and not text.is_bound and self._live == live

    def _may_go_on(self, running: Running, text: Continuation, finish: Finish) -> bool:
        """Whether the request of a text that has ended may run ahead."""
        is_spent = running.finished and not running.unread
        return text.goes_on(finish) and not is_spent and self._may_run_ahead(text, live=1)

    async def score(self, prompt: Prompt, wanted: Scoring) -> Scores:
        """Score by one request, and one for each id that its answer does not show."""
        ids, part, sampling = prompt.ids, wanted.part, wanted.sampling
        if wanted.top > SHOWN:
            raise Unsupported(f"more than the {SHOWN} likeliest tokens")
        if sampling is not None and prompt.call.constraint is not None:
            raise Unsupported("choices at the places of a text that is held to a grammar")
        check_length(len(ids) + 1, self.context)
        cost = Cost(len(ids), prompt.call.owner)
        fields: dict[str, Any] = {}
        if part is not None and part.start < len(ids):
            if sampling is None:
                most = SHOWN if wanted.ends else 1
            else:
                most = max(1, wanted.top) if sampling.is_greedy else SHOWN
            fields = prompt_scores(part.start, most)
        drawn = Sampling() if sampling is None else reseeded(sampling, len(ids))
        shown = SHOWN if wanted.labels or wanted.ends else max(1, wanted.top)
        parameters = request_parameters(drawn, max_tokens=1, logprobs=shown, **fields)
        output = await self._answer(ids, parameters, JUDGE, cost)
        ((made, after),) = made_tokens(output)
        scores = Scores()
        if part is not None:
            rows = prompt_logprobs(output, ids, slice(part.start, min(part.stop + 1, len(ids))))
            places = [*(here for _, here in rows), after][: len(part) + 1]
            own = [logprob for logprob, _ in rows[: len(part)]]
            lookup = partial(self._logprob, cost, ids[: part.stop])
            scores = await estimate(Known(own, places, made), wanted, lookup)
        labels = {token: after[token] for token in wanted.labels if token in after}
        for token in wanted.labels:
            if token not in labels:
                _, labels[token] = await self._logprob(cost, ids, [token])
        scores.labels = [labels[token] for token in wanted.labels]
        scores.usage = cost.usage()
        return scores

    async def end_ahead(self) -> None:
        await self._ahead.end()

    def _held(self, call: Call) -> dict[str, Any]:
        """Return the field for the call's grammar, which vLLM reads from the beginning of what it
        writes: an answer that has begun may continue only in free text before calls of tools."""
        constraint = call.constraint
        if constraint is None:
            return {}
        calls = self.prompts.calls if constraint.kind == "tools" else None
        begun = call.transcript.reply.strip()
        if begun and not (calls and is_free(constraint) and calls.trigger not in begun):
            raise Unsupported("going on within an answer that is held to a grammar")
        grammar = lark(constraint, calls, self.prompts.literal)
        return {"structured_outputs": StructuredOutputsParams(grammar=grammar)}

    @property
    def alive(self) -> bool:
        return not (self._closed or self.engine.errored)

    def stats(self) -> dict[str, int]:
        """Return counters since the start and current gauges, named as the built-in engine's."""
        counter = self._counter
        rows, live = self._capacity.rows, self._live - len(self._ahead)
        return {
            **self._counts,
            **counter.acceptance.stats(),
            "rounds": counter.rounds,
            "emitted_tokens": counter.emitted,
            "passes": counter.passes,
            "live_rows": min(live, rows),
            "queued": max(0, live - rows),
            "rows": rows,
            "slots": max(rows, self._capacity.tokens // self.context),
            "held_tokens": int(counter.cache_usage * self._capacity.tokens),
            "lossy": int(self.lossy),
        }

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.engine.output_processor.propagate_error(EngineDeadError())
            # vLLM ends its processes by SIGTERM; if they ignore it, it would wait 5 s in vain.
            ignored = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            self.engine.shutdown(timeout=0.0 if ignored else None)
            del self.engine  # whose destructor fails once the interpreter is going down

    async def _outputs(
        self, ids: Sequence[int], parameters: SamplingParams, priority: int, owner: str
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send one request; closing the iterator aborts it within one step."""
        if self._closed:
            raise WorkerUnavailable("the engine has stopped")
        if self._live >= self._capacity.rows + self._capacity.queue:
            raise Overloaded(f"all {self._capacity.rows} rows are taken and the queue is full")
        self._live += 1
        cached = 0
        try:
            prompt = tokens_input(list(ids), cache_salt=owner or None)
            outputs = self.engine.generate(
                prompt, parameters, secrets.token_hex(8), priority=priority
            )
            async with aclosing(outputs):
                async for output in outputs:
                    if output.finished:  # closed before its own end, vLLM would abort it
                        await anext(outputs, None)
                    made = len(output.outputs[0].token_ids)
                    cached = output.num_cached_tokens or 0
                    self._counts["generated_tokens"] += made
                    yield output
        except EngineDeadError as error:
            raise WorkerUnavailable("vLLM's engine process has died") from error
        except (QueueOverflowError, MaxQueuedTokensError) as error:
            raise Overloaded(f"vLLM's queue is full: {first_line(error)}") from error
        except VLLMClientError as error:
            if getattr(error, "parameter", None) in ASKED or parameters.structured_outputs:
                raise InvalidRequest(f"vLLM refuses the call: {first_line(error)}") from error
            raise WorkerError(
                f"vLLM refuses what the worker asks of it: {first_line(error)}; look at engine_args"
            ) from error
        except VLLMError as error:
            raise WorkerError(f"vLLM failed: {first_line(error)}") from error
        finally:
            self._live -= 1
            self._counts["prompt_tokens"] += len(ids)
            self._counts["cached_tokens"] += cached

    async def _answer(
        self, ids: Sequence[int], parameters: SamplingParams, priority: int, cost: Cost
    ) -> RequestOutput:
        """Return the one output of a request of one token."""
        await self._ahead.end()
        async with aclosing(self._outputs(ids, parameters, priority, cost.owner)) as outputs:
            async for output in outputs:
                cost.record(output)
                return output
        raise WorkerUnavailable("vLLM gave no answer")

    async def _logprob(
        self, cost: Cost, ids: Sequence[int], allowed: Iterable[int]
    ) -> tuple[int, float]:
        """Return the likeliest of the `allowed` tokens after a prompt, and its log-probability."""
        parameters = request_parameters(
            Sampling(), max_tokens=1, logprobs=1, allowed_token_ids=sorted(allowed)
        )
        ((made, logprobs),) = made_tokens(await self._answer(ids, parameters, JUDGE, cost))
        return made, logprobs[made]
