"""A worker over any OpenAI-compatible server: vLLM, SGLang, `transformers serve` and the like.

A transcript is rendered by the worker's own tokenizer and continued at `/completions`, by token ids
where the server takes them; where there is no such endpoint, by a chat whose last message is
continued, if the server is seen to do that. What a server can do is probed once, with a few calls
of one token; what it cannot do is refused by name (`Unsupported`).

A call is made again after a failure, up to `retries` times; a generation goes on where its stream
broke off. Closing an iterator closes its HTTP stream, by which servers stop working on it.

Differences from a local worker, all of them the servers':

- log-probabilities are those of the model's own law, whatever the temperature;
- choices drawn at a temperature (`verify`) come from the likeliest tokens that the server shows;
- an entropy (`StopCriteria.max_entropy`) and the likelihood of an end are estimated from those, as
  bounds where tokens that are not shown have a part in them (see `logprobs`);
- reading a prompt (a span of no tokens) makes it generate one, which is dropped;
- a server that tells no ids must show the end of the thought in its text, or stop at it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from orchestrator.errors import (
    BatonError,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, check_method
from workers.remote import errors as failures
from workers.remote import protocol as dialect
from workers.remote.address import base
from workers.remote.probe import probe
from workers.remote.protocol import Abilities, Vocabulary, sense
from workers.remote.request_builder import Outgoing
from workers.remote.response_parser import Asked, Incoming
from workers.retry import CircuitBreaker, CountedRetry
from workers.streams import merge_deltas, resume_generation
from workers.text.checks import check_length, check_sampling, label_ids
from workers.text.prompt import Prompts
from workers.text.tokenizer import Tokenizer
from workers.text.verification import endings, verification

log = logging.getLogger(__name__)


FAREWELL_S = 1.0  # for a server to end a stream whose last word was said


class Server:
    """One server: connections that are kept, errors in our words, retries, a circuit breaker.

    Args:
        url: its base (`http://host:8000/v1`); ConfigError if it is none.
        key: sent as the bearer's token.
        connect_s: seconds for a connection to come about.
        silence_s: seconds of silence after which a call counts as lost.
        retries: tries of a call after the first.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        connect_s: float = 5.0,
        silence_s: float = 60.0,
        retries: int = 2,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.name = base(url)
        self._retries, self.breaker = retries, breaker or CircuitBreaker(self.name)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout = httpx.Timeout(silence_s, connect=connect_s)
        self._home: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    @property
    def _http(self) -> httpx.AsyncClient:
        """The client of the running event loop: connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if self._home is None or self._home[0] is not loop:
            client = httpx.AsyncClient(
                headers=self._headers,
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                follow_redirects=False,
                trust_env=False,
            )
            self._home = loop, client
        return self._home[1]

    async def aclose(self) -> None:
        if self._home is not None and self._home[0] is asyncio.get_running_loop():
            await self._home[1].aclose()
        self._home = None

    def tries(self) -> CountedRetry:
        """The tries that one call has."""
        return CountedRetry(self._retries, self.breaker)

    async def get(self, path: str, *, patience_s: float | None = None) -> Any:
        """A page's JSON, tried once."""
        timeout = self._timeout if patience_s is None else httpx.Timeout(patience_s)
        with self._errors():
            response = await self._http.get(self.name + path, timeout=timeout)
            return self._json(response)

    async def ask(self, path: str, body: Mapping[str, Any], session: str = "") -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        retries = self.tries()
        while True:
            try:
                with self._errors():
                    response = await self._http.post(
                        self.name + path, json=body, headers=dialect.session(session)
                    )
                    return self._answer(self._json(response))
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def events(
        self, path: str, body: Mapping[str, Any], session: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed answer, tried once; closing it hangs up."""
        with self._errors():
            source = aconnect_sse(
                self._http, "POST", self.name + path, json=body, headers=dialect.session(session)
            )
            async with source as stream:
                if stream.response.status_code != 200:
                    await stream.response.aread()
                    self._json(stream.response)
                self.breaker.record_success()  # it answers; what comes of the stream is seen later
                lines = stream.aiter_sse()
                async for event in lines:
                    if event.data == "[DONE]":  # read to the end: the connection is used again
                        with suppress(TimeoutError, httpx.HTTPError):
                            await asyncio.wait_for(anext(lines, None), FAREWELL_S)
                        return
                    yield self._answer(json.loads(event.data))

    def _answer(self, data: Any) -> dict[str, Any]:
        """An answer or a chunk of one.

        Raises:
            BatonError: it is an error, or neither.
        """
        if isinstance(data, dict) and data.get("error"):
            raise failures.stream_failure(data, self.name)
        if not isinstance(data, dict) or not isinstance(data.get("choices"), list):
            raise WorkerUnavailable(f"{self.name}: not an answer of OpenAI's API")
        return data

    def _json(self, response: httpx.Response) -> Any:
        """The body of a response that is all right.

        Raises:
            BatonError: what its status stands for.
        """
        if response.status_code == 200:
            return response.json()
        try:
            body = response.json()
        except ValueError:
            body = None
        raise failures.failure(response.status_code, response.headers, body, self.name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors on the way in our words, and what they mean to the breaker."""
        self.breaker.before_call()
        try:
            yield
        except WorkerUnavailable:
            self.breaker.record_failure()
            raise
        except BatonError:
            self.breaker.record_success()  # it is there, and says no
            raise
        except (httpx.HTTPError, httpx.StreamError, SSEError) as error:
            self.breaker.record_failure()
            what = str(error) or type(error).__name__
            raise WorkerUnavailable(f"{self.name}: {what}") from None
        except ValueError as error:  # no JSON
            self.breaker.record_failure()
            raise WorkerUnavailable(f"{self.name} talks nonsense: {type(error).__name__}") from None
        else:
            self.breaker.record_success()


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
        self.prompts, self.vocabulary = Prompts(tokenizer), Vocabulary(tokenizer)
        self.context = context
        self._outgoing = Outgoing(self.prompts)
        self._eos = tokenizer.eos_id
        self._ends = tokenizer.controls | (set() if self._eos is None else {self._eos})
        self._able: Abilities | None = None
        self._probing: asyncio.Task[Abilities] | None = None

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`."""
        check_sampling(sampling)
        check_method(call.speculation, ())
        made, retries = Delta("", ()), self.server.tries()
        while True:
            rest = resume_generation(
                self._once, self.tokenizer.hash, made, call, criteria, sampling, True
            )
            try:
                async with aclosing(rest) as items:
                    async for item in items:
                        if isinstance(item, Generation):
                            yield item
                            return
                        made = merge_deltas((made, item))
                        retries.reset()
                        if stream:
                            yield item
                raise WorkerUnavailable(f"{self.server.name}: the stream broke off")
            except (WorkerUnavailable, Overloaded) as error:
                await retries.backoff(error)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation.

        A server without log-probabilities answers `likeliest` queries with one generated token:
        all mass is on that label, or all of it outside.
        """
        labels, nll = query.labels, query.nll
        began = perf_counter()
        chosen, able = label_ids(self.tokenizer, labels), await self.abilities()
        if not able.top and not query.likeliest:
            raise self._lacks("log-probabilities, which a law over labels needs")
        judged = call.transcript.last if nll else None
        verified = self.prompts.verified(judged)
        prefix = self.prompts.transcript(call.transcript)
        ids = prefix + self.prompts.side(query.turns, query.lead_in)
        check_length(len(ids) + 1, self.context)
        body = self._outgoing.body(able.prompt, ids, call.transcript, query)
        body |= dialect.wanted(self.model, Sampling(), able, 1, top=dialect.TOP[0])
        if able.labels:
            body["logprob_token_ids"] = list(chosen)
        if nll:
            ends = endings(self.tokenizer, self._ends, call.transcript, judged)
            body |= self._prompt_laws(able, able.top if ends else 1)
        answer = await self.server.ask(able.path, body, call.request)
        usage = dialect.usage(answer, len(ids), 1)
        if able.prompt == "chat" and usage.prompt != len(ids):
            raise self._lacks("a chat template that shows a judge the thought")
        named = dict(zip(labels, chosen, strict=True))
        echoed = len(ids) if nll and able.prompt_logprobs == "echo" else 0
        with sense(self.server.name):
            law = dialect.classification(
                answer, named, self.vocabulary, usage, _ms_since(began), echoed
            )
            if not nll:
                return law
            part = slice(len(prefix) - len(verified), len(prefix))
            told, ending = dialect.surprises(answer, ids, part, ends, self.vocabulary)
            return replace(law, nll=told, ending=ending if ends else None)

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        """The surprise at each token of a segment, and k + 1 choices of this model's own."""
        began = perf_counter()
        check_sampling(sampling)
        tokens, able = self.prompts.verified(segment), await self.abilities()
        ids = self.prompts.transcript(call.transcript) + list(tokens)
        check_length(len(ids) + 1, self.context)
        ends = endings(self.tokenizer, self._ends, call.transcript, segment)
        top = 1 if sampling.is_greedy else able.top
        body: dict[str, Any] = {"prompt": ids}
        body |= dialect.wanted(self.model, sampling, able, 1, top=able.top if ends else top)
        body |= self._prompt_laws(able, top)
        if able.labels and ends:  # as many as it would show of the likeliest; the end of turn first
            named = sorted(ends, key=lambda i: (i != self._eos, i))
            body["logprob_token_ids"] = named[: able.top]
        answer = await self.server.ask(able.path, body, call.request)
        with sense(self.server.name):
            verdict = dialect.verdict(answer, ids, len(tokens), sampling, ends, self.vocabulary)
            usage = dialect.usage(answer, len(ids), 1)
            return verification(
                verdict, call, segment, self.prompts, self._ends, usage, _ms_since(began)
            )

    async def abilities(self) -> Abilities:
        """What the server can do; probed at the first call and kept.

        Raises:
            Unsupported: it cannot continue a text.
            WorkerError: it could not be asked, or has no such model.
        """
        if self._able is None:
            home, probing = asyncio.get_running_loop(), self._probing
            if probing is None or probing.done() or probing.get_loop() is not home:
                probing = self._probing = asyncio.create_task(self._probe())
            # Many wait for one probe; one of them that is cancelled does not cancel it.
            self._able = await asyncio.shield(probing)
        return self._able

    async def answers(self, patience_s: float = 2.0) -> bool:
        """Whether the server is there, within so many seconds."""
        try:
            await self.server.get("/models", patience_s=patience_s)
        except WorkerError:
            return False
        return True

    async def aclose(self) -> None:
        """Close the connections; calls in progress fail."""
        await self.server.aclose()

    async def _probe(self) -> Abilities:
        def ask(path: str, body: dict[str, Any]) -> Awaitable[Mapping[str, Any]]:
            return self.server.ask(path, {"model": self.model, **body})

        with sense(self.server.name):
            able = await probe(ask, self.prompts, self.vocabulary)
        if self.context is None:
            with suppress(WorkerError):
                self.context = dialect.context(await self.server.get("/models"), self.model)
        log.info("%s, %s: %s, context %s", self.server.name, self.model, able, self.context)
        return able

    async def _once(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """One try at a generation, streamed in any case: so its silence can be told from work."""
        began, able = perf_counter(), await self.abilities()
        for gate, asks in (
            ("min_confidence", criteria.min_confidence > 0),
            ("max_entropy", criteria.max_entropy is not None),
        ):
            if asks and not (able.ids and able.top):
                raise self._lacks(f"log-probabilities of tokens, which {gate} needs")
        ids = self.prompts.transcript(call.transcript)
        check_length(len(ids) + (criteria.max_tokens > 0), self.context)
        asked = Asked.of(call.transcript, len(ids), criteria, self.context, self._ends)
        body = self._outgoing.body(able.prompt, ids, call.transcript)
        top = 1 if criteria.max_entropy is None else able.top
        body |= dialect.wanted(self.model, sampling, able, asked.room, top=top)
        begun, finish = self.prompts.unfinished(call.transcript), None
        incoming = Incoming(self.tokenizer, able, asked, begun)
        spent: Mapping[str, Any] = {}
        if asked.room > 0:
            body |= asked.stops(self.tokenizer, able)
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            events = self.server.events(able.path, body, call.request)
            async with aclosing(events):
                async for data in events:
                    spent = data if data.get("usage") else spent
                    with sense(self.server.name):
                        piece = dialect.read(data, self.vocabulary)
                    if piece is None or finish is not None:
                        continue
                    finish = incoming.push(piece)
                    if finish is None and piece.finish is not None:
                        raise WorkerUnavailable(f"{self.server.name} ended by {piece.finish!r}")
                    if finish is None and (delta := incoming.take()):
                        yield delta
                    if finish is not None and piece.finish is None:
                        break  # we hang up; where the server ended too, its usage is to come
            if finish is None:
                raise WorkerUnavailable(f"{self.server.name}: the stream broke off")
        elif criteria.max_tokens == 0 and (self.context is None or len(ids) < self.context):
            spent = await self.server.ask(able.path, body, call.request)
        if delta := incoming.end():
            yield delta
        segment = incoming.segment(call.author, finish or "length")
        made = incoming.made or len(segment.tokens)
        if finish == "length":
            made = max(made, asked.room)  # our count of a text's tokens may fall short
        usage = dialect.usage(spent, len(ids), made)
        if asked.room <= 0 or incoming.withheld:
            usage = replace(usage, generated=0)  # it only read, or did not even do that
        yield Generation(segment, usage, _ms_since(began), incoming.entropy)

    def _prompt_laws(self, able: Abilities, top: int) -> dict[str, Any]:
        """The field that asks for the laws of the prompt, `top` tokens of each."""
        if able.prompt_logprobs is None:
            raise self._lacks("log-probabilities of the prompt, which verifying needs")
        return {able.prompt_logprobs: top if able.prompt_logprobs == "prompt_logprobs" else True}

    def _lacks(self, what: str) -> Unsupported:
        log.error("%s does not give %s", self.server.name, what)
        return Unsupported(f"the model's server does not give {what}")


def _ms_since(began: float) -> float:
    return (perf_counter() - began) * 1e3
