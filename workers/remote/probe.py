"""Finds what a server can do, by requests for a few tokens with fewer and fewer fields.

A server may ignore a field and answer 200, or know it in whole answers alone. So the probe believes
what comes back: in an answer with one token, and in a stream with several. A server's dialect is
the one that can read its answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from math import exp
from statistics import median
from typing import Any, Final, get_args

from orchestrator.errors import BatonError, Unsupported, WorkerUnavailable
from orchestrator.types import (
    GREEDY,
    Constraint,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects import ID_FIELDS, recognized, scoring
from workers.remote.dialects.openai import OPENAI, OpenAI
from workers.remote.dialects.sglang import PATH, SGLANG
from workers.remote.dialects.transformers_serve import TRANSFORMERS_SERVE
from workers.remote.errors import Absent, Broke, Declined, Foreign, Gap
from workers.remote.protocol import ROUNDING, Chunk, Vocabulary, checked_answer
from workers.remote.request_builder import PromptKind, prompt_fields
from workers.remote.response_parser import ResponseParser
from workers.remote.server import Server
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer

log = logging.getLogger(__name__)

PROMPT_KINDS: Final[tuple[PromptKind, ...]] = get_args(PromptKind)
Fields = Mapping[str, Any]
TOP = (20, 5, 1, 0)  # log-probabilities to ask for: vLLM's most, OpenAI's most, the least, none
STEP = Segment("policy", "1 + 1 = 2.\n\n")
TRACE = Transcript((Message("user", "What is 1 + 1?"),)).extend(STEP)
ONE = {"max_tokens": 1, "temperature": 0}
SEVERAL = {"max_tokens": 8, "temperature": 0}
ENDING, TIMES = "So the answer is 2.", 4
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
SEVEN_TEXT = "7"
SEVEN = Constraint("json_schema", '{"const": 7}')
HOT = (100.0, 2.0, 1.0)
"""Temperatures at which a server that samples writes another text than the greedy one. Some take no
more than OpenAI's 2 or Anthropic's 1, at which a confident model may repeat it."""
SEEDS = range(1, 5)
TIES = 2  # greedy texts that may differ by rounding errors, beside other requests
SURELY = 100  # OpenAI's highest `logit_bias`: only such a token is drawn


async def probe(
    server: Server, model: str, prompts: PromptRenderer, vocabulary: Vocabulary
) -> ServerCapabilities:
    """Return a server's capabilities, by a few requests for a few tokens.

    Raises:
        Unsupported: it cannot continue a text in any way that we know.
        WorkerError: it cannot be reached, or has no such model.
    """
    reasons: list[str] = []  # why its answers cannot be used
    declined: Declined | None = None
    absent: Absent | None = None
    broke: Broke | None = None
    for kind in PROMPT_KINDS:
        try:
            trial = _Trial(server, model, prompts, vocabulary, ServerCapabilities(kind))
        except Unsupported as error:
            reasons.append(str(error))
            continue
        chat = kind == "chat"
        for wish in (
            OPENAI.logprob_fields(t, chat=chat) | ids for ids in (ID_FIELDS, {}) for t in TOP
        ):
            try:
                answer, events = await trial.first(wish)
            except Absent as error:  # no such endpoint
                absent = error
                break
            except Declined as error:  # it may accept fewer fields
                declined = error
                continue
            except Broke as error:  # likewise, or it is out of order
                broke = error
                continue
            broke = None  # it answers, so a field was the cause
            if (reason := trial.refused(answer, wish)) is None:
                return await trial.run(answer, events)
            reasons.append(reason)
            break
    if broke is not None:
        raise broke
    if not (reasons or declined) and absent is not None:
        raise absent
    why = reasons or ["it refuses every request that was tried; check its log and the model's name"]
    log.info("the server refused: %s", declined)
    raise Unsupported(f"the model's server cannot continue a text: {'; '.join(why)}")


@dataclass
class _Trial:
    """Requests to a server by one kind of prompt; `able` is what their answers show."""

    server: Server
    model: str
    prompts: PromptRenderer
    vocabulary: Vocabulary
    able: ServerCapabilities

    def __post_init__(self) -> None:
        self.ids = self.prompts.transcript(TRACE)
        self.prompt = self._body(self.ids, TRACE)

    def _body(self, ids: Sequence[int], transcript: Transcript) -> Fields:
        return prompt_fields(self.prompts, self.able.prompt, ids, transcript)

    async def first(self, wish: Fields) -> tuple[Fields, list[Fields]]:
        """Send a request with these fields, then a streamed one; return the answer and events."""
        answer = await self._ask({**self.prompt, **ONE, **wish})
        body = {"model": self.model, **self.prompt, **SEVERAL, **STREAMED, **wish}
        async with aclosing(self.server.events(self.able.path, body, trying=True)) as events:
            return answer, [event async for event in events]

    def refused(self, answer: Fields, wish: Fields) -> str | None:
        """Return why the answer cannot be used; if it can, record what it shows."""
        kind, size = self.able.prompt, len(self.ids)
        read = (answer.get("usage") or {}).get("prompt_tokens")
        if kind == "chat" and read != size:
            return "it does not continue the last message of a chat"
        if kind == "text" and read is not None and read != size:
            return (
                f"it reads a prompt of {size} tokens as {read}: it puts a template of its "
                "own around a text, or the tokenizer is not the served model's"
            )
        dialect = recognized(answer, self.vocabulary)
        shows = bool(dialect.first_logprobs(answer, self.vocabulary))
        chunk = dialect.chunk(answer, self.vocabulary)
        repeats = chunk is not None and chunk.text.strip().startswith(self._continued)
        if kind == "chat" and repeats and not shows:  # its text alone shows a judge's choice
            return "it repeats the message of a chat that it continues"
        top = int(wish.get("top_logprobs", wish.get("logprobs", 0))) if shows else 0
        extras = wish.keys() >= ID_FIELDS.keys()
        self.able = replace(self.able, dialect=dialect, top=top, extras=extras)
        return None

    async def run(self, answer: Fields, events: Sequence[Fields]) -> ServerCapabilities:
        """Find out the rest, beginning with what the `first` requests returned."""
        if self.able.dialect.restricts:
            self._found(min_tokens=await self._takes_min_tokens())
        self._read(events)
        greedy = await self._greedy()
        if self.prompts.tokenizer.thinks and not self.able.reads_ids:
            self._found(stops=await self._stops(greedy) and await self._ends())
        self._found(forms=await self._forms())
        await self._sampling(greedy)
        if self.able.top and self.able.prompt == "ids":
            await self._more(self.able.dialect.first_logprobs(answer, self.vocabulary))
        return self.able

    def _found(self, **fields: Any) -> None:
        self.able = replace(self.able, **fields)

    def _read(self, events: Sequence[Fields]) -> None:
        """Record what a stream lacks.

        Raises:
            Unsupported: its ids are another tokenizer's.
        """
        tokenizer, criteria = self.prompts.tokenizer, StopCriteria(int(SEVERAL["max_tokens"]))
        call = Call("probe", TRACE)
        text = Continuation(
            call, criteria, self.prompts, [], stop_token_ids=tokenizer.ends, context=None
        )
        if not self.able.reads_ids:
            text.read_text()
        parser = ResponseParser(text, self.prompts, self.able)
        try:
            for event in events:
                chunk = self.able.dialect.chunk(event, self.vocabulary)
                if chunk is not None and parser.push(chunk):
                    break
        except Foreign as error:
            raise Unsupported(str(error)) from None
        except Gap as gap:
            self.able = self.able.lacking(gap.what)
            self._read(events)

    async def _greedy(self) -> str:
        """Return the text at temperature 0, not streamed: streams show half a character otherwise.

        Raises:
            Unsupported: it samples at temperature 0, as `transformers serve --continuous-batching`
                does after a first request that sampled.
        """
        seen: set[str] = set()
        for _ in range(2 + TIES):
            text = await self._several(self.prompt) or ""
            if text in seen:
                return text
            seen.add(text)
        raise Unsupported(
            "the model's server writes a different text each time at temperature 0, so it samples "
            "by its own settings; restart it, or serve the model by another server"
        )

    async def _stops(self, greedy: str) -> bool:
        """Whether it stops at a stop string, here the first word of its greedy text."""
        word, *rest = greedy.split()[:2] or [""]
        if not rest:
            return True  # nothing shows the contrary
        text = await self._several({**self.prompt, "stop": [word]})
        _, found, more = (text or "").partition(word)
        return not (found and more.strip())

    async def _ends(self) -> bool:
        """Whether the end of a thought is seen. A server that hides the marker and continues makes
        tokens without text, at least a first one.

        `logit_bias` forces the marker, or for servers that ignore it, a prompt that repeats a text
        with the marker after it.
        """
        tokenizer, chat = self.prompts.tokenizer, self.able.prompt == "chat"
        if tokenizer.close_id is None:
            return True  # its tokens are text
        prompt = self.prompt
        if not chat:
            again = list(tokenizer.encode(ENDING))
            ids = [*self.ids, *TIMES * [*again, tokenizer.close_id], *again]
            prompt = self._body(ids, TRACE)
        body = dict(prompt) | {"logit_bias": {str(tokenizer.close_id): SURELY}}
        body |= self.able.dialect.marker_fields(tokenizer, ending=True, extras=self.able.extras)
        if not (several := await self._chunk({**body, **SEVERAL})):
            del body["logit_bias"]
            several = await self._chunk({**body, **SEVERAL})
        if several and not self._made(several):
            return several.finish == "stop"
        if chat or not several:
            return True  # nothing shows the contrary
        one = await self._chunk({**body, **ONE})
        return not one or bool(one.text)

    async def _forms(self) -> bool:
        """Whether it constrains an answer to a form, here one that it would not choose."""
        answered = replace(TRACE, closed=True)
        call = Call("probe", answered, "policy", constraint=SEVEN)
        ids = self.prompts.transcript(answered)
        try:
            body = self._body(ids, answered)
        except Unsupported:
            return False
        body = {**body, **self.able.dialect.form_fields(call)}
        return await self._several(body) == SEVEN_TEXT

    async def _sampling(self, greedy: str) -> None:
        """Find whether a temperature changes its text from `greedy`, and whether it needs the
        fields of `transformers serve` for that."""
        plain, serve = self.able.dialect, TRANSFORMERS_SERVE
        drawn = await self._differs(greedy, plain.sampling_fields)
        if drawn is None or self.able.dialect.returns_ids:
            self._found(samples=drawn is not False)  # nothing shows the contrary
        elif drawn:  # perhaps by the checkpoint's settings, which this field can override
            held = await self._differs(
                greedy, lambda hot: plain.sampling_fields(hot) | serve.cuts(GREEDY)
            )
            self._found(dialect=serve if held is False else plain)
        elif await self._differs(greedy, serve.sampling_fields):
            self._found(dialect=serve)
        else:
            self._found(samples=False)

    async def _differs(self, greedy: str, fields: Callable[[Sampling], Fields]) -> bool | None:
        """Whether a text at a high temperature differs; None if the server refuses them all."""
        for temperature in HOT:
            for seed in SEEDS:
                hot = fields(Sampling(temperature, seed=seed))
                text = await self._several({**self.prompt, **hot})
                if text is None:
                    break
                if text != greedy:
                    return True
            else:
                return False
        return None

    def _made(self, chunk: Chunk) -> str:
        """Return an answer's text, without the chat message that llama.cpp repeats."""
        return chunk.text.strip().removeprefix(self._continued).strip()

    @property
    def _continued(self) -> str:
        """The chat message that is continued; empty for a completion."""
        messages = self.prompt.get("messages") or [{"content": ""}]
        return str(messages[-1]["content"]).strip()

    async def _more(self, after: Mapping[int, float]) -> None:
        """Find whether it returns log-probabilities of named tokens, and of the prompt.

        `after` are those of the token after the prompt, by id.
        """
        able, dialect = self.able, self.able.dialect
        if dialect.most_logprobs:
            answer = await self._tried({**self.prompt, **ONE, "logprobs": dialect.most_logprobs})
            shown = {} if answer is None else dialect.first_logprobs(answer, self.vocabulary)
            self._found(top=max(able.top, len(shown)))
        body = {**self.prompt, **ONE, **dialect.logprob_fields(1, chat=False)}
        if dialect.restricts:
            self._found(lookups=await self._looks_up(body, after))
        for way in scoring(dialect):
            if way is SGLANG:
                scores = await self._is_sglang(after)
            else:
                answer = await self._tried({**body, **way.prompt_logprob_fields(1)})
                scores = answer is not None and self._scores(way, answer)
            if scores:
                self._found(dialect=way, scores=True)
                return

    async def _looks_up(self, body: Fields, after: Mapping[int, float]) -> bool:
        """Whether it draws one of three tokens, and returns its log-probability among all."""
        # The likeliest of the three has at least a third of their sum, but far less among all.
        unlikely = [i for i in range(len(after) + 3) if i not in after][:3]
        answer = await self._tried({**body, "allowed_token_ids": unlikely})
        shown = {} if answer is None else self.able.dialect.first_logprobs(answer, self.vocabulary)
        drawn = [shown[i] for i in unlikely if i in shown]
        return bool(drawn) and exp(max(drawn)) < 0.25

    async def _takes_min_tokens(self) -> bool:
        """Whether it reads `min_tokens`: then it refuses a value above `max_tokens`."""
        body = {**self.prompt, **ONE}
        more = await self._tried({**body, "min_tokens": 2})
        return more is None and await self._tried({**body, "min_tokens": 1}) is not None

    def _scores(self, way: OpenAI, answer: Fields) -> bool:
        """Whether an answer has log-probabilities of the prompt's last id and of the next token."""
        part = range(len(self.ids) - 1, len(self.ids))
        with suppress(WorkerUnavailable), checked_answer("the server"):
            way.scored_places(answer, self.ids, part, self.vocabulary)
            return True
        return False

    async def _is_sglang(self, after: Mapping[int, float]) -> bool:
        """Whether SGLang's own path works, with what a judge needs, for the same model.

        The path names no model. Beside an adapter (`base:adapter`) or a router's other models,
        another model may answer there: then its log-probabilities differ from `after`.
        """
        ids, named = self.ids, sorted({0, len(self.ids), *after})
        body = SGLANG.score_request(ids, len(ids) - 2, 1, named, "")
        try:
            with checked_answer("the server"):
                made = await self.server.fetch(PATH, body, beside=True)
                answer = SGLANG.as_completion(made, ids, GREEDY)
                shown = SGLANG.first_logprobs(answer, self.vocabulary)
                if not (set(named) <= shown.keys() and self._scores(SGLANG, answer)):
                    return False
                apart = median(abs(shown[i] - logprob) for i, logprob in after.items())
        except BatonError as error:  # the path is closed or another's: do without it
            log.info("%s is not used: %s", PATH, error)
            return False
        if not apart <= ROUNDING:
            log.warning(
                "%s is not used: its log-probabilities are %.2g nats from those of the named "
                "model, so another model answers there",
                PATH,
                apart,
            )
            return False
        return True

    async def _tried(self, body: Fields) -> Fields | None:
        """Return the answer, or None if the server refuses."""
        try:
            return await self._ask(body)
        except (Declined, Broke):
            return None

    async def _ask(self, body: Fields) -> Fields:
        return await self.server.ask(self.able.path, {"model": self.model, **body}, trying=True)

    async def _chunk(self, body: Fields) -> Chunk | None:
        answer = await self._tried(body)
        return None if answer is None else self.able.dialect.chunk(answer, self.vocabulary)

    async def _several(self, body: Fields) -> str | None:
        """Return the text of several tokens, not streamed; None if the server refuses."""
        chunk = await self._chunk({**SEVERAL, **body})
        return None if chunk is None else self._made(chunk)
