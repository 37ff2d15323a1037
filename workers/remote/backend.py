"""Any OpenAI-compatible server as a `Backend`.

A server continues a prompt at `/completions`, or else the last message of a chat. The first call
probes it with a few short requests; `Unsupported` names what it cannot do. A generation continues
where its stream broke off. Closing an iterator closes its HTTP stream.

Differences from a local backend, all of them the servers':

- log-probabilities are those at temperature 1, whatever the request's;
- choices drawn at a temperature come from the likeliest tokens that the server returns;
- the likelihood of an end is estimated from those, as a bound if other tokens count (see
  `workers.top_logprobs`);
- prefill (a generation of no tokens) generates one token, which is dropped;
- a server that returns no ids must show the end of the thought in its text, or stop at it;
- llama.cpp gives no log-probabilities of the prompt, and no ids of tokens that end inside a
  character: those are found by encoding it (see `response_parser`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final

from orchestrator.errors import BatonError, Overloaded, Unsupported, WorkerError, WorkerUnavailable
from orchestrator.grammar import holds, is_free
from orchestrator.types import GREEDY, Constraint, Generation, Usage
from orchestrator.worker import Call, Delta
from workers.backend import Decoding, Prompt, Scoring
from workers.remote import protocol
from workers.remote.capabilities import Missing, ServerCapabilities
from workers.remote.dialects.openai import no_logprobs
from workers.remote.dialects.sglang import PATH, Sglang
from workers.remote.errors import Gap
from workers.remote.listing import context as listed_context
from workers.remote.probe import probe
from workers.remote.protocol import Chunk, Vocabulary, checked_answer
from workers.remote.request_builder import prompt_fields
from workers.remote.response_parser import ResponseParser
from workers.remote.running import RunningStream
from workers.remote.server import Server
from workers.rng import reseeded
from workers.run_ahead import GenerationsAhead
from workers.text.checks import check_length
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.text.verification import Scores
from workers.top_logprobs import estimate, negligible

log = logging.getLogger(__name__)
PROBE_AGAIN_S: Final = 10.0  # seconds from a probe that failed to the next that /ready begins
GAP_S: Final = 60.0
"""For how long a server is not asked for what one of its streams lacked: one of its replicas may
have been the cause."""


class RemoteBackend:
    """Requests to a `Server` for one model, by the served model's tokenizer.

    Without `context`, its length in tokens, the server is asked; if it does not say, it is left to
    refuse what is too long, and no stream runs ahead. The others may by `run_ahead` tokens.
    """

    methods = ()
    """A call may name none: the server decides."""
    sampling = GREEDY

    def __init__(
        self,
        server: Server,
        model: str,
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        run_ahead: int = 0,
    ) -> None:
        self.server, self.model = server, model
        self.prompts, self.vocabulary = PromptRenderer(tokenizer), Vocabulary(tokenizer)
        self.context = context
        eos = tokenizer.eos_id
        self.ends = tokenizer.ends | (set() if eos is None else {eos})
        self._ahead, self._live = GenerationsAhead[RunningStream](run_ahead), 0
        self._capabilities: ServerCapabilities | None = None
        self._missing: Missing = None  # what streams lacked although the probe saw it
        self._asked_again = 0.0  # when it is asked for again, by the monotonic clock
        self._refusal: str | None = None  # why the last probe failed
        self._probe_again = 0.0  # when the next may begin, by the monotonic clock
        self._probing: asyncio.Task[ServerCapabilities] | None = None

    async def ready(self) -> None:
        await self.capabilities()

    async def decode(
        self, prompt: Prompt, wanted: Decoding
    ) -> AsyncGenerator[Delta | Generation, None]:
        text, retries = wanted.text, self.server.tries()
        gap: Missing = None  # found in a stream of this call
        spent: list[Usage] = []
        while True:
            try:
                if (finish := text.resume()) is not None:
                    segment = text.segment(finish)
                    spent.append(Usage(len(prompt.ids), generated=len(segment.tokens)))
                    yield Generation(segment, _total(spent))
                    return
                async with aclosing(self._attempt(prompt, wanted, gap)) as items:
                    async for item in items:
                        if isinstance(item, Delta):
                            retries.reset()
                            if wanted.stream:
                                yield item
                            continue
                        generation, inside = item
                        spent.append(generation.usage)
                        if not inside:
                            yield replace(generation, usage=_total(spent))
                            return
            except Gap as found:  # continue the text without these
                gap = found.what
                self._record_gap(gap)
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def _attempt(
        self, prompt: Prompt, wanted: Decoding, gap: Missing
    ) -> AsyncGenerator[Delta | tuple[Generation, bool], None]:
        """Yield the deltas of one request, then the generation so far and whether the server
        stopped inside a step. The request is always streamed, since a silent server counts as lost.
        """
        text = wanted.text
        able = await self._able(wanted, gap)
        text.bare = not able.reads_logprobs
        if not able.reads_ids:
            text.read_text()
        ids = text.ids
        body = self._body(ids, wanted, able)
        stream = None
        self._live += 1
        try:
            if text.max_tokens > 0:
                stream = await self._stream(prompt, wanted, able, body)
            agreement = None if stream is None else stream.agreement
            parser = ResponseParser(text, self.prompts, able, agreement)
            if stream is not None:
                async with aclosing(self._written(text, stream, parser)) as deltas:
                    async for piece in deltas:
                        yield piece
            elif text.criteria.max_tokens == 0 and (
                self.context is None or len(ids) < self.context
            ):
                parser.answer = await self.server.ask(able.path, body, prompt.call.affinity)
            delta = text.delta(ended=True)
            segment = text.segment(parser.finish or "length")
            if stream is not None:
                await self._end(prompt, stream, parser, [*ids, *segment.tokens])
        finally:
            self._live -= 1
        if delta:
            yield delta
        if parser.finish == "eos":
            await asyncio.to_thread(
                check_held, prompt.call.constraint, segment.text, self.server.name
            )
        inside = parser.inside
        if stream is not None and agreement is not None:  # it counts the tokens of all its calls
            made = max(parser.made, text.count)
            usage = Usage(len(ids), len(ids), made, max(1, made), stream.adopted)
            inside = inside or (segment.finish == "length" and text.generated < text.max_tokens)
        else:
            with checked_answer(self.server.name):
                usage = parser.usage(len(ids), shared=_shared(prompt, able))
        if before := len(text.before.tokens):  # these are not part of the caller's prompt
            read = usage.prompt - before
            cached = min(usage.cached, read)
            usage = replace(usage, prompt=read, cached=cached, generated=len(segment.tokens))
        yield Generation(segment, usage), inside

    async def _stream(
        self, prompt: Prompt, wanted: Decoding, able: ServerCapabilities, body: dict[str, Any]
    ) -> RunningStream:
        """Return the stream that ran ahead for a call, or a new one."""
        text, stops = wanted.text, partial(able.stop_fields, wanted.text, self.prompts.tokenizer)
        form, ahead = (wanted.sampling, text.thinking, able, stops(steps=False)), 0
        if text.before.tokens:
            await self._ahead.end()
        else:
            if (adopted := await self._ahead.adopt(prompt, form)) is not None:
                return adopted
            alone = self._live == 1 and not text.is_bound
            if able.reads_ids and self.context is not None and alone:
                room = self.context - len(prompt.ids) - text.max_tokens
                ahead = max(0, min(self._ahead.tokens, room))
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= stops(steps=not ahead) | {"max_tokens": text.max_tokens + ahead}
        events = self.server.events(able.path, body, prompt.call.affinity)

        def chunk(event: dict[str, Any]) -> Chunk | None:
            with checked_answer(self.server.name):
                return None if able.dialect.left_out else able.dialect.chunk(event, self.vocabulary)

        return RunningStream(events, chunk, form, ahead)

    async def _written(
        self, text: Continuation, stream: RunningStream, parser: ResponseParser
    ) -> AsyncGenerator[Delta, None]:
        """Yield what a stream writes until its text has ended; close it if no call may continue it.

        Raises:
            WorkerUnavailable: it ended before its text.
        """
        goes_on = False
        try:
            while (event := await stream.take()) is not None:
                ended = parser.finish is not None
                with checked_answer(self.server.name):
                    done = parser.read(event, self.vocabulary)
                stream.count(text.count)
                if parser.finish is None:
                    if delta := text.delta(ended=False):
                        yield delta
                elif not ended:
                    goes_on = stream.ahead > 0 and self._live == 1 and text.goes_on(parser.finish)
                    stream.last = event
                if done or goes_on:
                    break
        finally:
            if not goes_on:
                await stream.close()
        if parser.finish is None and stream.is_spent:  # another request writes the rest
            parser.finish = "length"
        if parser.finish is None:
            how = f" ended by {parser.reason!r}" if parser.reason else ": the stream broke off"
            raise WorkerUnavailable(f"{self.server.name}{how}")

    async def _end(
        self, prompt: Prompt, stream: RunningStream, parser: ResponseParser, ids: list[int]
    ) -> None:
        """Let a stream run ahead of a call whose text ended after `ids`, or close it."""
        if not stream.is_closed and parser.may_go_on(len(ids) - len(prompt.ids)):
            stream.run_ahead(ids, parser.agreement, again=parser.finish == "doubt")
            self._ahead.keep(prompt, [stream])
        else:
            await stream.close()

    async def _able(self, wanted: Decoding, gap: Missing) -> ServerCapabilities:
        """Return the capabilities for a generation; `gap` is what a stream of this call lacked.

        Raises:
            Unsupported: the generation needs more than these.
        """
        able, criteria = (await self.capabilities()).lacking(gap), wanted.text.criteria
        if monotonic() > self._asked_again:
            self._missing = None
        if not (criteria.min_confidence or criteria.min_tokens):
            able = able.lacking(self._missing)  # this call needs neither ids nor log-probabilities
        if criteria.min_confidence > 0 and not able.reads_logprobs:
            raise self._lacks("log-probabilities of tokens, which min_confidence needs")
        if not able.samples and not wanted.sampling.is_greedy:
            raise self._lacks("sampling: it writes the same at any temperature")
        if criteria.min_tokens and not able.min_tokens:
            raise self._lacks("a way to hold back the end of a text (min_tokens)")
        if criteria.ignore_eos:
            raise Unsupported("ignoring the end of turn (ignore_eos), which no server is asked for")
        if wanted.text.closing and wanted.text.max_tokens > 0 and not able.stops:
            raise self._lacks(
                "a sign of the end of a thought: it neither shows the marker in its text nor stops "
                "there (stop, stop_token_ids)"
            )
        return able

    def _body(
        self, ids: Sequence[int], wanted: Decoding, able: ServerCapabilities
    ) -> dict[str, Any]:
        """Return the request for a generation, without the fields that stop it."""
        text, call = wanted.text, wanted.text.call
        body = prompt_fields(self.prompts, able.prompt, ids, call.transcript)
        drawn = reseeded(wanted.sampling, len(ids))
        body |= able.request_fields(self.model, drawn, text.max_tokens)
        if (fields := able.dialect.form_fields(call)) and not able.forms:
            raise self._lacks("answers that are held to a form (structured_outputs, json_schema)")
        return body | fields | self._call_fields(call, able)

    async def end_ahead(self) -> None:
        await self._ahead.end()

    async def score(self, prompt: Prompt, wanted: Scoring) -> Scores:
        """Score by one request, and one for each id that its answer does not show."""
        ids, part, able = prompt.ids, wanted.part, await self.capabilities()
        self._check_scoring(prompt, wanted, able)
        answer, scores = await self._scored(prompt, wanted, able), Scores()
        with checked_answer(self.server.name):
            spent = [protocol.usage(answer, len(ids), 1, shared=_shared(prompt, able))]
        if able.prompt == "chat" and spent[0].prompt != len(ids):
            raise self._lacks("a chat template that includes the thought in a judge's prompt")
        if part is not None:
            with checked_answer(self.server.name):
                known = able.dialect.scored_places(answer, ids, part, self.vocabulary)
            lookup = partial(self._lookup, prompt, spent, ids[: part.stop])
            scores = await estimate(known, wanted, lookup if able.lookups else None)
        if wanted.labels:
            scores.labels = await self._labels(prompt, wanted, answer, spent)
        made_tokens, passes = sum(one.generated for one in spent), sum(one.passes for one in spent)
        scores.usage = replace(spent[0], generated=made_tokens, passes=passes)
        return scores

    def _check_scoring(self, prompt: Prompt, wanted: Scoring, able: ServerCapabilities) -> None:
        """Refuse (`Unsupported`) what the server cannot score."""
        constraint, query = prompt.call.constraint, prompt.query
        if wanted.labels and not able.top and not (query and query.likeliest):
            raise self._lacks("log-probabilities, which a distribution over labels needs")
        if wanted.sampling is not None and constraint is not None and not is_free(constraint):
            raise Unsupported("choices at the places of a text that is held to a grammar")
        if wanted.top > able.top:
            raise self._lacks(f"more than the {able.top} likeliest tokens of a position")
        if wanted.part is not None and not able.scores:
            raise self._lacks("log-probabilities of the prompt, which verifying needs")
        check_length(len(prompt.ids) + 1, self.context)

    async def _scored(
        self, prompt: Prompt, wanted: Scoring, able: ServerCapabilities
    ) -> Mapping[str, Any]:
        """Request one token after the prompt, with log-probabilities."""
        ids, call, part, ends = prompt.ids, prompt.call, wanted.part, wanted.ends
        sampling = GREEDY if wanted.sampling is None else wanted.sampling
        drawn = reseeded(sampling, len(ids))
        shown = max(1, wanted.top) if sampling.is_greedy else able.top
        if isinstance(able.dialect, Sglang):
            start, named = None if part is None else part.start - 1, {*wanted.labels, *ends}
            body = able.dialect.score_request(ids, start, shown, named, call.owner)
            answer = await self.server.ask(PATH, body, call.affinity, beside=True)
            with checked_answer(self.server.name):
                return able.dialect.as_completion(answer, ids, drawn)
        most = able.top if ends else shown
        body = prompt_fields(self.prompts, able.prompt, ids, call.transcript, prompt.query)
        body |= able.request_fields(self.model, drawn, 1, able.top if wanted.labels else most)
        if part is not None:
            # If more of the prompt follows the part, the place after it is in the prompt, too.
            body |= able.dialect.prompt_logprob_fields(most if part.stop < len(ids) else shown)
        body |= self._call_fields(call, able)
        return await self.server.ask(able.path, body, call.affinity)

    def _call_fields(self, call: Call, able: ServerCapabilities) -> dict[str, Any]:
        """Return the fields of a call's owner and, if the server renders the prompt, its effort."""
        fields = able.dialect.owner_fields(call.owner)
        level = self.prompts.effort_variables(call.transcript)
        if level and able.prompt == "chat":
            fields = fields | able.dialect.effort_fields(level)
        return fields

    async def _labels(
        self, prompt: Prompt, wanted: Scoring, answer: Mapping[str, Any], spent: list[Usage]
    ) -> list[float]:
        """Return the log-probability of each label after the prompt; without log-probabilities,
        the one token that the server made has all of the probability."""
        able, labels, query = await self.capabilities(), wanted.labels, prompt.query
        assert query is not None
        echoed = 0 if wanted.part is None else able.dialect.prompt_length(prompt.ids)
        with checked_answer(self.server.name):
            shown = able.dialect.first_logprobs(answer, self.vocabulary, echoed)
            if able.top and not shown:
                raise no_logprobs()
            if not shown:
                named = dict(zip(query.labels, labels, strict=True))
                return able.dialect.point_logprobs(answer, named, self.vocabulary)
        if able.lookups and not negligible(labels, shown):
            rest = [[i] for i in labels if i not in shown]
            looked_up = (self._lookup(prompt, spent, prompt.ids, one) for one in rest)
            shown |= dict(await asyncio.gather(*looked_up))
        return [shown.get(i, -inf) for i in labels]

    async def _lookup(
        self, prompt: Prompt, spent: list[Usage], ids: list[int], allowed: Collection[int]
    ) -> tuple[int, float]:
        """Return the likeliest of the `allowed` tokens after `ids`, and its log-probability; add
        the cost to `spent`."""
        able, call = await self.capabilities(), prompt.call
        body: dict[str, Any] = {"prompt": ids, "allowed_token_ids": sorted(allowed)}
        body |= able.request_fields(self.model, GREEDY, 1)
        body |= able.dialect.owner_fields(call.owner)
        answer = await self.server.ask(able.path, body, call.affinity)
        with checked_answer(self.server.name):
            spent.append(protocol.usage(answer, len(ids), 1))
            shown = able.dialect.first_logprobs(answer, self.vocabulary)
            found = {i: shown[i] for i in allowed if i in shown}
            if not found:
                raise no_logprobs()
        return max(found.items(), key=lambda one: one[1])

    async def capabilities(self) -> ServerCapabilities:
        """Return what the server can do, probed once.

        Raises:
            Unsupported: it cannot continue a text.
            WorkerError: it cannot be reached, or has no such model.
        """
        if self._capabilities is None:
            home, probing = asyncio.get_running_loop(), self._probing
            if probing is None or probing.done() or probing.get_loop() is not home:
                probing = self._probing = asyncio.create_task(self._probe())
            # Several calls may wait for one probe: cancelling one of them must not cancel it.
            self._capabilities = await asyncio.shield(probing)
        return self._capabilities

    def _record_gap(self, missing: Missing) -> None:
        """Read further texts without what a stream lacked of what the probe saw."""
        if self._missing in (None, "logprobs") and missing != self._missing:
            self._missing, self._asked_again = missing, monotonic() + GAP_S
            log.warning(
                "%s leaves out %s of some tokens in its streams, which the probe saw: for %g s "
                "texts are encoded again",
                self.server.name,
                "ids" if missing == "ids" else "log-probabilities",
                GAP_S,
            )

    async def trouble(self, timeout_s: float = 2.0) -> str | None:
        """Return why the server does not serve the model now; None if it does.

        The first call begins the probe, so that no request waits for it. After a probe that failed,
        the next one begins `PROBE_AGAIN_S` later.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.server.fetch("/models", timeout_s=timeout_s)
        except TimeoutError:
            return f"{self.server.name}: no answer within {timeout_s:g} s"
        except BatonError as error:
            return str(error)
        if self._capabilities is None and monotonic() >= self._probe_again:
            with suppress(BatonError, TimeoutError):  # `_probe` records why
                async with asyncio.timeout(timeout_s / 2):
                    await self.capabilities()
        if self._capabilities is not None:
            return None
        if monotonic() < self._probe_again:
            return self._refusal
        return f"{self.server.name}: Baton still finds out what it can do"

    async def aclose(self) -> None:
        """Close the connections; calls in progress fail."""
        await self._ahead.end()
        await self.server.aclose()

    async def _probe(self) -> ServerCapabilities:
        try:
            with checked_answer(self.server.name):
                capabilities = await probe(self.server, self.model, self.prompts, self.vocabulary)
        except BatonError as error:  # clients see no address, so the log names the server
            log.error("%s, %s: %s", self.server.name, self.model, error)
            # Policies that need what a server lacks say so, and others can use it.
            self._refusal = None if isinstance(error, Unsupported) else str(error)
            self._probe_again = monotonic() + PROBE_AGAIN_S
            raise
        if self.context is None:
            with suppress(WorkerError), checked_answer(self.server.name):
                self.context = listed_context(await self.server.fetch("/models"), self.model)
        log.info("%s, %s: %s, context %s", self.server.name, self.model, capabilities, self.context)
        return capabilities

    def _lacks(self, what: str) -> Unsupported:
        log.error("%s does not give %s", self.server.name, what)
        return Unsupported(f"the model's server does not give {what}")


def check_held(constraint: Constraint | None, text: str, name: str) -> None:
    """Refuse (`WorkerError`) a whole answer that does not match its constraint."""
    if constraint is not None and not is_free(constraint) and not holds(constraint, text):
        raise WorkerError(
            f"{name} did not hold its answer to the form that was asked for: check that it takes "
            "structured_outputs (vLLM) or json_schema (llama.cpp)"
        )


def _shared(prompt: Prompt, able: ServerCapabilities) -> bool:
    """Whether other owners' prompts may be in what the server says it had cached."""
    owner = prompt.call.owner
    return bool(owner) and not able.dialect.owner_fields(owner)


def _total(spent: Sequence[Usage]) -> Usage:
    """Sum the cost of attempts that continued one another; prompt and cache are the first one's."""
    passes = sum(one.passes for one in spent)
    return replace(spent[0], generated=spent[-1].generated, passes=passes)
