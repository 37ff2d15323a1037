"""A worker over any OpenAI-compatible server: vLLM, SGLang, `transformers serve` and the like.

A transcript is rendered by the worker's own tokenizer and continued at `/completions`, by token ids
where the server takes them; where there is no such endpoint, by a chat whose last message is
continued, if the server is seen to do that. What a server can do is probed once, with a few calls
of one token; what it cannot do is refused (`Unsupported`, which names it).

A call is made again after a failure, up to `retries` times; a generation goes on where its stream
broke off. Closing an iterator closes its HTTP stream, by which servers stop working on it.

Differences from a local worker, all of them the servers':

- log-probabilities are those at temperature 1, whatever the request's;
- choices drawn at a temperature (`verify`) come from the likeliest tokens that the server shows;
- the likelihood of an end is estimated from those, as a bound if tokens that are not shown count
  (see `logprobs`);
- prefill (a generation of no tokens) makes it generate one, which is dropped;
- a server that returns no ids must show the end of the thought in its text, or stop at it;
- llama.cpp's gives no log-probabilities of the prompt, and no ids of tokens that end inside a
  character: those are found by encoding it (see `response_parser`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from orchestrator.errors import (
    Contradiction,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.grammar import is_free
from orchestrator.types import (
    GREEDY,
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Usage,
    Verification,
)
from orchestrator.worker import Call, Delta, check_method
from workers.model.rng import reseeded
from workers.remote import protocol, sglang
from workers.remote.errors import Gap
from workers.remote.gaps import Gaps, Missing, lacking
from workers.remote.probe import probe
from workers.remote.protocol import ServerCapabilities, Vocabulary, checked_answer
from workers.remote.request_builder import RequestBuilder
from workers.remote.response_parser import ParserOptions, ResponseParser, closing_marker
from workers.remote.server import Server
from workers.reporting import ms_since
from workers.streams import merge_deltas, resume_generation
from workers.text.boundaries import StepEnd, begun
from workers.text.checks import check_length, check_sampling, label_ids
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.text.verification import finish_token_ids, verification
from workers.top_logprobs import negligible, stop_nll, whole_stop_nll

log = logging.getLogger(__name__)


class RemoteWorker:
    """The `Worker` port over a `Server`.

    Args:
        server: where the model is served.
        model: its name there.
        tokenizer: that of the served model.
        context: tokens of its context; None asks the server, and where it does not say, leaves
            it to refuse what is too long.
    """

    def __init__(
        self, server: Server, model: str, tokenizer: Tokenizer, *, context: int | None = None
    ) -> None:
        self.server, self.model, self.tokenizer = server, model, tokenizer
        self.prompts, self.vocabulary = PromptRenderer(tokenizer), Vocabulary(tokenizer)
        self.context = context
        self._requests = RequestBuilder(self.prompts)
        eos = tokenizer.eos_id
        self._stop_token_ids = tokenizer.ends | (set() if eos is None else {eos})
        self._capabilities: ServerCapabilities | None = None
        self._gaps = Gaps()
        self._probing: asyncio.Task[ServerCapabilities] | None = None

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`."""
        check_sampling(sampling)
        check_method(call.speculation, ())
        made, retries = list[Delta](), self.server.tries()
        parts: list[Generation] = []  # attempts that ended at a delimiter inside a step
        before = begun(call.transcript, criteria.until)
        gap: Missing = None  # found in a stream of this call
        while True:
            so_far, once = merge_deltas(made), partial(self._once, gap)
            rest = resume_generation(
                once, self.tokenizer.hash, so_far, call, criteria, sampling, True
            )
            try:
                async with aclosing(rest) as items:
                    async for item in items:
                        if isinstance(item, Generation):
                            whole = item.segment
                            step = StepEnd(criteria.until, before)
                            if whole.finish == "until" and step.feed(whole.text) is None:
                                # The server stops at any delimiter, also inside a code block.
                                made = [Delta(whole.text, whole.tokens, whole.logprobs)]
                                parts.append(item)
                                break
                            yield _one_of([*parts, item])
                            return
                        made.append(item)
                        retries.reset()
                        if stream:
                            yield item
                    else:
                        raise WorkerUnavailable(f"{self.server.name}: the stream broke off")
            except Gap as found:  # the text goes on without
                if gap is None:
                    self._seen(found.what)
                gap = found.what
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation.

        A server without log-probabilities answers `likeliest` queries with one generated token:
        all mass is on that label, or all of it outside.
        """
        labels, nll = query.labels, query.nll
        began = perf_counter()
        chosen, capabilities = label_ids(self.tokenizer, labels), await self.capabilities()
        if not capabilities.top and not query.likeliest:
            raise self._lacks("log-probabilities, which a distribution over labels needs")
        judged = call.transcript.last if nll else None
        verified = self.prompts.verified(judged)
        prefix = await self.prompts.prepare(call.transcript, self.context, call.owner)
        ids = prefix + self.prompts.side(query.turns, query.lead_in)
        check_length(len(ids) + 1, self.context)
        stop_token_ids = finish_token_ids(
            self.prompts, self._stop_token_ids, call.transcript, judged
        )
        shared = bool(call.owner) and not capabilities.salts
        if capabilities.prompt_logprobs == "sglang":
            start = len(prefix) - len(verified) - 1 if nll else None
            answer = await self._ask_sglang(call, ids, start, named={*chosen, *stop_token_ids})
        else:
            body = self._requests.body(capabilities.prompt, ids, call.transcript, query)
            body |= protocol.request_fields(
                self.model, Sampling(), capabilities, 1, top=capabilities.wide or protocol.TOP[0]
            )
            body |= protocol.owner_fields(call.owner, capabilities)
            if nll:
                top = capabilities.top if stop_token_ids else 1
                body |= self._prompt_logprobs(capabilities, top)
            answer = await self.server.ask(capabilities.path, body, call.affinity)
        with checked_answer(self.server.name):
            usage = protocol.usage(answer, len(ids), 1, shared=shared)
        if capabilities.prompt == "chat" and usage.prompt != len(ids):
            raise self._lacks("a chat template that includes the thought in a judge's prompt")
        named = dict(zip(labels, chosen, strict=True))
        echoed = len(ids) if nll and capabilities.prompt_logprobs == "echo" else 0
        with checked_answer(self.server.name):
            shown = protocol.first_logprobs(answer, self.vocabulary, echoed)
            if capabilities.top and not shown:
                raise protocol.no_logprobs()
        found: dict[int, float] = {}
        spent: list[Usage] = [usage]
        if capabilities.lookups and not negligible(chosen, shown):
            rest = [[i] for i in chosen if i not in shown]
            looked_up = (self._lookup(call, ids, one, spent) for one in rest)
            found = dict(await asyncio.gather(*looked_up))
        with checked_answer(self.server.name):
            classification = protocol.classification(
                answer, named, self.vocabulary, usage, ms_since(began), echoed, found
            )
            if not nll:
                return replace(classification, usage=_total(spent))
            part = slice(len(prefix) - len(verified), len(prefix))
            values, behind = protocol.prompt_nll(answer, ids, part, self.vocabulary)
        ending = await self._stop_nll(call, prefix, behind, stop_token_ids, spent)
        return replace(
            classification,
            nll=values,
            ending=ending if stop_token_ids else None,
            usage=_total(spent),
        )

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """The negative log-likelihood of each of k tokens, and k + 1 choices of this model."""
        began = perf_counter()
        check_sampling(sampling)
        if call.constraint is not None and not is_free(call.constraint):
            raise Unsupported("choices at the places of a text that is held to a grammar")
        tokens, capabilities = self.prompts.verified(segment), await self.capabilities()
        if top > capabilities.top:
            raise self._lacks(f"more than the {capabilities.top} likeliest tokens of a position")
        prefix = await self.prompts.prepare(call.transcript, self.context, call.owner)
        if not prefix:
            raise Unsupported("log-probabilities from the first token on")
        ids = prefix + list(tokens)
        check_length(len(ids) + 1, self.context)
        stop_token_ids = finish_token_ids(
            self.prompts, self._stop_token_ids, call.transcript, segment
        )
        shown = max(1, top) if sampling.is_greedy else capabilities.top
        shared = bool(call.owner) and not capabilities.salts
        if capabilities.prompt_logprobs == "sglang":
            drawn = reseeded(sampling, len(ids))
            answer = await self._ask_sglang(
                call, ids, len(prefix) - 1, named=stop_token_ids, top=shown, sampling=drawn
            )
        else:
            body: dict[str, Any] = {"prompt": ids}
            body |= protocol.request_fields(
                self.model,
                reseeded(sampling, len(ids)),
                capabilities,
                1,
                top=capabilities.top if stop_token_ids else shown,
            )
            body |= self._prompt_logprobs(capabilities, shown)
            body |= protocol.owner_fields(call.owner, capabilities)
            answer = await self.server.ask(capabilities.path, body, call.affinity)
        with checked_answer(self.server.name):
            output, behind = protocol.score_output(
                answer, ids, len(tokens), sampling, self.vocabulary, top
            )
            spent = [protocol.usage(answer, len(ids), 1, shared=shared)]
        output.ending = await self._stop_nll(call, ids, behind, stop_token_ids, spent)
        return verification(
            output,
            call,
            segment,
            self.prompts,
            self._stop_token_ids,
            _total(spent),
            ms_since(began),
        )

    async def _stop_nll(
        self,
        call: Call,
        ids: list[int],
        shown: Mapping[int, float],
        stop_token_ids: Collection[int],
        spent: list[Usage],
    ) -> float:
        """The negative log-likelihood that one of `stop_token_ids` follows `ids`."""
        if not (await self.capabilities()).lookups:
            return stop_nll(shown, stop_token_ids)
        return await whole_stop_nll(
            shown, stop_token_ids, lambda rest: self._lookup(call, ids, rest, spent)
        )

    async def _lookup(
        self, call: Call, ids: list[int], allowed: Collection[int], spent: list[Usage]
    ) -> tuple[int, float]:
        """The likeliest of the `allowed` tokens behind `ids`, and its log-probability; what that
        costs is added to `spent`."""
        capabilities = await self.capabilities()
        body: dict[str, Any] = {"prompt": ids, "allowed_token_ids": sorted(allowed)}
        body |= protocol.request_fields(self.model, GREEDY, capabilities, 1, top=1)
        body |= protocol.owner_fields(call.owner, capabilities)
        answer = await self.server.ask(capabilities.path, body, call.affinity)
        with checked_answer(self.server.name):
            spent.append(protocol.usage(answer, len(ids), 1))
            shown = protocol.first_logprobs(answer, self.vocabulary)
            found = {i: shown[i] for i in allowed if i in shown}
            if not found:
                raise protocol.no_logprobs()
        return max(found.items(), key=lambda one: one[1])

    async def _ask_sglang(
        self,
        call: Call,
        ids: list[int],
        start: int | None,
        *,
        named: Collection[int],
        top: int = 1,
        sampling: Sampling = GREEDY,
    ) -> Mapping[str, Any]:
        """What `sglang.request_body` asks for; the server reads the ids behind `start` alone."""
        body = sglang.request_body(ids, start=start, top=top, named=named, owner=call.owner)
        answer = await self.server.ask_sglang(body, call.affinity)
        with checked_answer(self.server.name):
            return sglang.as_completion(answer, ids, sampling)

    async def capabilities(self) -> ServerCapabilities:
        """What the server can do; probed at the first call and kept.

        Raises:
            Unsupported: it cannot continue a text.
            WorkerError: it cannot be reached, or has no such model.
        """
        if self._capabilities is None:
            home, probing = asyncio.get_running_loop(), self._probing
            if probing is None or probing.done() or probing.get_loop() is not home:
                probing = self._probing = asyncio.create_task(self._probe())
            # Many wait for one probe; one of them that is cancelled does not cancel it.
            self._capabilities = await asyncio.shield(probing)
        return self._capabilities

    def _seen(self, missing: Missing) -> None:
        """Take what a stream lacked of what the probe saw."""
        known = self._capabilities
        if known is not None and lacking(known, missing) == known:
            missing = None  # no more than in the probe
        if self._gaps.seen(missing):
            name = self.server.name
            if missing is None:
                log.warning("%s sends ids and log-probabilities of all tokens again", name)
            else:
                what = "ids" if missing == "ids" else "log-probabilities"
                log.warning(
                    "%s leaves out %s of some tokens in its streams, which the probe saw: until "
                    "they come again texts are encoded again",
                    name,
                    what,
                )

    async def is_available(self, timeout_s: float = 2.0) -> bool:
        """Whether the server answers within `timeout_s` seconds."""
        try:
            await self.server.get("/models", timeout_s=timeout_s)
        except WorkerError:
            return False
        return True

    async def aclose(self) -> None:
        """Close the connections; calls in progress fail."""
        await self.server.aclose()

    async def _probe(self) -> ServerCapabilities:
        def ask(path: str, body: dict[str, Any]) -> Awaitable[Mapping[str, Any]]:
            if path == sglang.PATH:
                return self.server.try_sglang(body)
            return self.server.ask(path, {"model": self.model, **body}, trying=True)

        def stream(path: str, body: dict[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
            return self.server.events(path, {"model": self.model, **body}, trying=True)

        try:
            with checked_answer(self.server.name):
                capabilities = await probe(ask, stream, self.prompts, self.vocabulary)
        except Unsupported as error:  # which clients see, so it does not name the server
            log.error("%s, %s: %s", self.server.name, self.model, error)
            raise
        if self.context is None:
            with suppress(WorkerError), checked_answer(self.server.name):
                self.context = protocol.context(await self.server.get("/models"), self.model)
        log.info("%s, %s: %s, context %s", self.server.name, self.model, capabilities, self.context)
        return capabilities

    async def _once(
        self,
        gap: Missing,
        call: Call,
        criteria: StopCriteria,
        sampling: Sampling,
        *,
        stream: bool = True,
    ) -> AsyncGenerator[Delta | Generation, None]:
        """One attempt, always streamed: a server that sends nothing for long counts as lost.
        `gap` is what a stream of the same call lacked."""
        began, capabilities = perf_counter(), lacking(await self.capabilities(), gap)
        if not (criteria.min_confidence or criteria.min_tokens):
            capabilities = lacking(capabilities, self._gaps.missing)  # it can go without
        if criteria.min_confidence > 0 and not capabilities.reads_logprobs:
            raise self._lacks("log-probabilities of tokens, which min_confidence needs")
        if capabilities.draws is None and not sampling.is_greedy:
            raise self._lacks("sampling: it writes the same at any temperature")
        ids = await self.prompts.prepare(call.transcript, self.context, call.owner)
        check_length(len(ids) + (criteria.max_tokens > 0), self.context)
        if criteria.min_tokens and not capabilities.min_tokens:
            raise self._lacks("a way to hold back the end of a text (min_tokens)")
        if criteria.ignore_eos:
            raise Unsupported("ignoring the end of turn (ignore_eos), which no server is asked for")
        options = ParserOptions.of(
            call.transcript,
            len(ids),
            criteria,
            self.context,
            self.prompts.ends(self._stop_token_ids, call.transcript),
        )
        body = self._requests.body(capabilities.prompt, ids, call.transcript)
        body |= protocol.request_fields(
            self.model,
            reseeded(sampling, len(ids)),
            capabilities,
            options.remaining_tokens,
            top=1,
        )
        if (fields := protocol.constraint_fields(call, capabilities)) and not capabilities.forms:
            raise self._lacks("answers that are held to a form (structured_outputs, json_schema)")
        body |= fields
        body |= protocol.owner_fields(call.owner, capabilities)
        shared = bool(call.owner) and not capabilities.salts
        unfinished_bytes, finish = self.prompts.unfinished(call.transcript), None
        parser = ResponseParser(
            self.tokenizer,
            capabilities,
            options,
            unfinished_bytes,
            self.prompts.second_close(call.transcript, call.constraint),
        )
        whole = False  # whether all of the stream was read
        spent: Mapping[str, Any] = {}
        if options.remaining_tokens > 0:
            if closing_marker(self.tokenizer, options.thinking) and not capabilities.stops:
                raise self._lacks(
                    "a sign of the end of a thought: it neither shows the marker in its text nor "
                    "stops there (stop, stop_token_ids)"
                )
            body |= options.stop_fields(self.tokenizer, capabilities)
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            events = self.server.events(capabilities.path, body, call.affinity)
            async with aclosing(events):
                async for data in events:
                    spent = data if data.get("usage") else spent
                    with checked_answer(self.server.name):
                        chunk = protocol.parse_chunk(data, self.vocabulary)
                        if chunk is None:
                            continue
                        if whole and (chunk.text or chunk.tokens):
                            raise Contradiction("text came after the server had ended it")
                        if finish is not None:
                            if chunk.finish is None and not whole:
                                break  # it goes on, so it does not stop by itself
                            whole = True
                            parser.ended_unasked(chunk, finish)
                            continue
                        finish = parser.push(chunk)
                        whole = chunk.finish is not None
                    if finish is None and chunk.finish is not None:
                        raise WorkerUnavailable(f"{self.server.name} ended by {chunk.finish!r}")
                    if finish is None and (delta := parser.take()):
                        yield delta
                    if finish is not None and chunk.finish is None and not capabilities.numbered:
                        break  # where the server ended by itself, a chunk of usage follows
            if finish is None:
                raise WorkerUnavailable(f"{self.server.name}: the stream broke off")
        elif criteria.max_tokens == 0 and (self.context is None or len(ids) < self.context):
            spent = await self.server.ask(capabilities.path, body, call.affinity)
        if delta := parser.end():
            yield delta
        segment = parser.segment(call.author, finish or "length")
        if finish == "eos":
            await asyncio.to_thread(
                protocol.check_held, call.constraint, segment.text, self.server.name
            )
        made = parser.made or len(segment.tokens)
        if finish == "length":
            made = max(made, options.remaining_tokens)  # a text encoded again may have fewer tokens
        with checked_answer(self.server.name):
            usage = protocol.usage(spent, len(ids), made, shared=shared)
            counts = protocol.usage(spent, 0, 0)
            if whole and counts.generated and counts.prompt == len(ids):  # counted as we count
                parser.check_count(counts.generated, segment.finish)
        if gap is None and segment.tokens:
            self._seen(parser.missing)
        if options.remaining_tokens <= 0:
            usage = replace(usage, generated=0)  # it only prefilled, or not even that
        yield Generation(
            segment,
            usage,
            ms_since(began),
            self.prompts.thinks(call.transcript, call.owner),
            self.prompts.calls_of(call.transcript),
        )

    def _prompt_logprobs(self, capabilities: ServerCapabilities, top: int) -> dict[str, Any]:
        """The field that requests `top` log-probabilities at each position of the prompt."""
        if capabilities.prompt_logprobs is None:
            raise self._lacks("log-probabilities of the prompt, which verifying needs")
        field = capabilities.prompt_logprobs
        return {field: top if field == "prompt_logprobs" else True}

    def _lacks(self, what: str) -> Unsupported:
        log.error("%s does not give %s", self.server.name, what)
        return Unsupported(f"the model's server does not give {what}")


def _one_of(parts: Sequence[Generation]) -> Generation:
    """The last of several attempts, each of which went on with what the one before had made, as
    the one generation that they are: prompt and cache are those that the first found."""
    first, last = parts[0], parts[-1]
    passes = sum(part.usage.passes for part in parts)
    usage = replace(first.usage, generated=last.usage.generated, passes=passes)
    ms = sum(part.ms for part in parts)
    return replace(last, usage=usage, ms=ms)


def _total(spent: Sequence[Usage]) -> Usage:
    """Of calls with one prompt: what the first found cached, and all that they made."""
    made, passes = sum(one.generated for one in spent), sum(one.passes for one in spent)
    return replace(spent[0], generated=made, passes=passes)
