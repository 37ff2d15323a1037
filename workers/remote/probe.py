"""Finds what a server can do, by requests for a few tokens with fewer and fewer fields.

A server may ignore a field and answer 200, or know it in whole answers alone: so what comes back
counts, of an answer with one token and of a stream with several.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from math import exp
from statistics import median
from typing import Any, Literal

from orchestrator.errors import BatonError, Unsupported, WorkerUnavailable
from orchestrator.types import Constraint, Message, Sampling, Segment, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.remote import sglang
from workers.remote.errors import Absent, Broke, Declined, Foreign, Gap
from workers.remote.gaps import lacking
from workers.remote.protocol import (
    EXTRAS,
    ROUNDING,
    TOP,
    WIDE,
    Chunk,
    ServerCapabilities,
    Vocabulary,
    checked_answer,
    constraint_fields,
    first_logprobs,
    generation_config,
    next_token,
    parse_chunk,
    prompt_logprobs,
    sampling_fields,
    shown_bytes,
)
from workers.remote.request_builder import RequestBuilder
from workers.remote.response_parser import ResponseParser
from workers.remote.stops import marker_stop, shown_markers
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer

log = logging.getLogger(__name__)

Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""(path, body) to the answer's JSON; raises the errors of `orchestrator.errors`."""

Stream = Callable[[str, dict[str, Any]], AsyncGenerator[Mapping[str, Any], None]]
"""(path, body) to the chunks of a streamed answer; raises likewise."""

STEP = Segment("policy", "1 + 1 = 2.\n\n")
TRACE = Transcript((Message("user", "What is 1 + 1?"),)).extend(STEP)
ONE = {"max_tokens": 1, "temperature": 0}
SEVERAL = {"max_tokens": 8, "temperature": 0}
ENDING, TIMES = "So the answer is 2.", 4
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
SEVEN_TEXT = "7"
SEVEN = Constraint("json_schema", '{"const": 7}')
HOT = ((100.0, 1), *((limit, seed) for limit in (2.0, 1.0) for seed in (1, 2, 3, 4)))
"""(temperature, seed) by which a server that samples writes another text than the likeliest; some
take no more than OpenAI's 2 or Anthropic's 1, where a model may be sure of it."""
TIES = 2  # greedy texts that may differ by rounding errors, as they do beside other requests
SURELY = 100  # OpenAI's most for `logit_bias`: only such a token is drawn


async def probe(
    ask: Ask, stream: Stream, prompts: PromptRenderer, vocabulary: Vocabulary
) -> ServerCapabilities:
    """A server's capabilities, by a few calls of a few tokens.

    Raises:
        Unsupported: it cannot continue a text in any way that we know.
        WorkerError: it cannot be reached, or has no such model.
    """
    requests, ids = RequestBuilder(prompts), prompts.transcript(TRACE)
    reasons: list[str] = []  # why an answer is none that we can use
    declined: Declined | None = None
    absent: Absent | None = None
    broke: Broke | None = None
    for form in ("ids", "text", "chat"):
        capabilities = ServerCapabilities(form)
        try:
            prompt = requests.body(form, ids, TRACE)
        except Unsupported as error:
            reasons.append(str(error))
            continue
        for wish in _wishes(form):
            try:
                answer = await ask(capabilities.path, {**prompt, **ONE, **wish})
                body = {**prompt, **SEVERAL, **STREAMED, **wish}
                chunks = await _read(stream(capabilities.path, body), vocabulary)
            except Absent as error:  # no such endpoint
                absent = error
                break
            except Declined as error:  # it may accept fewer fields
                declined = error
                continue
            except Broke as error:  # likewise, though it may also be out of order
                broke = error
                continue
            broke = None  # it answers, so it was a field that it lacks
            read = (answer.get("usage") or {}).get("prompt_tokens")
            if form == "chat" and read != len(ids):
                reasons.append("it does not continue the last message of a chat")
                break
            if form == "text" and read is not None and read != len(ids):
                reasons.append(
                    f"it reads a prompt of {len(ids)} tokens as {read}: it puts a template of its "
                    "own around a text, or the tokenizer is not the served model's"
                )
                break
            chunk, logprobs = parse_chunk(answer, vocabulary), first_logprobs(answer, vocabulary)
            capabilities = replace(
                capabilities,
                ids=chunk is not None and chunk.tokens is not None,
                top=_top(wish) if logprobs else 0,
                numbered=bool(shown := shown_bytes(answer)),
                extras=wish.keys() >= EXTRAS.keys(),
            )
            if form == "chat" and not logprobs and _repeats(prompt, chunk):
                reasons.append("it repeats the message of a chat that it continues")
                break
            _check_vocabulary(shown, prompts)
            if capabilities.ids and not capabilities.numbered:
                least = await _takes_min_tokens(ask, capabilities, {**prompt, **ONE})
                capabilities = replace(capabilities, min_tokens=least)
            capabilities = _streamed(capabilities, chunks, prompts)
            greedy = await _greedy(ask, capabilities, prompt, vocabulary)
            if prompts.tokenizer.thinks and not capabilities.reads_ids:
                stops = await _stops(ask, capabilities, prompt, greedy, vocabulary)
                stops = stops and await _ends(ask, capabilities, prompt, requests, vocabulary)
                capabilities = replace(capabilities, stops=stops)
            forms = await _forms(ask, capabilities, prompts, vocabulary)
            capabilities = replace(capabilities, forms=forms)
            draws = await _draws(ask, capabilities, prompt, greedy, vocabulary)
            capabilities = replace(capabilities, draws=draws)
            return await _more(ask, capabilities, ids, vocabulary, logprobs)
    if broke is not None:
        raise broke
    if not (reasons or declined) and absent is not None:
        raise absent
    why = reasons or ["it refuses every request that was tried; check its log and the model's name"]
    log.info("the server refused: %s", declined)
    raise Unsupported(f"the model's server cannot continue a text: {'; '.join(why)}")


async def _read(
    events: AsyncGenerator[Mapping[str, Any], None], vocabulary: Vocabulary
) -> list[Chunk]:
    async with aclosing(events):
        chunks = [parse_chunk(event, vocabulary) async for event in events]
    return [chunk for chunk in chunks if chunk is not None]


def _streamed(
    capabilities: ServerCapabilities, chunks: Sequence[Chunk], prompts: PromptRenderer
) -> ServerCapabilities:
    """The capabilities without what the chunks of a stream lack.

    Raises:
        Unsupported: their ids are another tokenizer's.
    """
    tokenizer, criteria = prompts.tokenizer, StopCriteria(int(SEVERAL["max_tokens"]))
    text = Continuation(
        Call("probe", TRACE), criteria, prompts, 0, stop_token_ids=tokenizer.ends, context=None
    )
    if not capabilities.reads_ids:
        text.read_text()
    parser = ResponseParser(text, prompts, capabilities)
    try:
        for chunk in chunks:
            if parser.push(chunk):
                break
    except Foreign as error:
        raise Unsupported(str(error)) from None
    except Gap as gap:
        return _streamed(lacking(capabilities, gap.what), chunks, prompts)
    return capabilities


async def _several(
    ask: Ask, capabilities: ServerCapabilities, body: Mapping[str, Any], vocabulary: Vocabulary
) -> str | None:
    """The text of several tokens, not streamed; None where the server refuses."""
    answer = await _tried(ask, capabilities, {**SEVERAL, **body})
    chunk = None if answer is None else parse_chunk(answer, vocabulary)
    return None if chunk is None else _made(body, chunk)


async def _greedy(
    ask: Ask, capabilities: ServerCapabilities, prompt: Mapping[str, Any], vocabulary: Vocabulary
) -> str:
    """The text at temperature 0, not streamed: half a character at its end may be shown otherwise
    in a stream.

    Raises:
        Unsupported: it samples at temperature 0, as `transformers serve --continuous-batching`
            does whose process was first asked to sample.
    """
    seen: set[str] = set()
    for _ in range(2 + TIES):
        text = await _several(ask, capabilities, prompt, vocabulary) or ""
        if text in seen:
            return text
        seen.add(text)
    raise Unsupported(
        "the model's server writes other texts each time at temperature 0, so it samples by "
        "its own settings; start it again, or serve the model by another server"
    )


async def _stops(
    ask: Ask,
    capabilities: ServerCapabilities,
    prompt: Mapping[str, Any],
    greedy: str,
    vocabulary: Vocabulary,
) -> bool:
    """Whether it stops at a stop string: the first word of what it writes anyhow."""
    word, *rest = greedy.split()[:2] or [""]
    if not rest:
        return True  # nothing shows the contrary
    text = await _several(ask, capabilities, {**prompt, "stop": [word]}, vocabulary)
    _, found, more = (text or "").partition(word)
    return not (found and more.strip())


async def _ends(
    ask: Ask,
    capabilities: ServerCapabilities,
    prompt: Mapping[str, Any],
    requests: RequestBuilder,
    vocabulary: Vocabulary,
) -> bool:
    """Whether the end of a thought is seen: a server that hides the marker and continues makes
    tokens without a text, or a first one.

    The marker comes by `logit_bias`, or if the server does not read that, after a text that ended
    with it a few times.
    """
    tokenizer, chat = requests.prompts.tokenizer, capabilities.prompt == "chat"
    if tokenizer.close_id is None:
        return True  # its tokens are text
    if not chat:
        again = list(tokenizer.encode(ENDING))
        ids = [*requests.prompts.transcript(TRACE), *TIMES * [*again, tokenizer.close_id], *again]
        prompt = requests.body(capabilities.prompt, ids, TRACE)
    body = dict(prompt) | {"logit_bias": {str(tokenizer.close_id): SURELY}}
    assert tokenizer.format is not None
    body |= marker_stop(tokenizer.format.close.strip(), tokenizer, capabilities)
    body |= shown_markers(tokenizer, capabilities)

    async def answered(size: Mapping[str, Any]) -> Chunk | None:
        answer = await _tried(ask, capabilities, {**body, **size})
        return None if answer is None else parse_chunk(answer, vocabulary)

    if not (several := await answered(SEVERAL)):
        del body["logit_bias"]
        several = await answered(SEVERAL)
    if several and not _made(prompt, several):
        return several.finish == "stop"
    if chat or not several:
        return True  # nothing shows the contrary
    one = await answered(ONE)
    return not one or bool(one.text)


async def _forms(
    ask: Ask, capabilities: ServerCapabilities, prompts: PromptRenderer, vocabulary: Vocabulary
) -> bool:
    """Whether it holds an answer to a form: here to one that is wrong otherwise."""
    answered = replace(TRACE, closed=True)
    call = Call("probe", answered, "policy", constraint=SEVEN)
    try:
        body = RequestBuilder(prompts).body(
            capabilities.prompt, prompts.transcript(answered), answered
        )
    except Unsupported:
        return False
    body |= constraint_fields(call, capabilities)
    return await _several(ask, capabilities, body, vocabulary) == SEVEN_TEXT


async def _draws(
    ask: Ask,
    capabilities: ServerCapabilities,
    prompt: Mapping[str, Any],
    greedy: str,
    vocabulary: Vocabulary,
) -> Literal["temperature", "generation_config"] | None:
    """The field that makes it sample, if any: it then writes another text than `greedy`."""

    async def samples(greedily: bool | None) -> bool | None:
        """Whether it does; None where it refuses. `greedily`: by `generation_config`, too."""
        differs: bool | None = None
        for temperature, seed in HOT:
            if differs is not None and temperature < 2:
                break  # it takes more, and wrote the same
            sampling = Sampling(temperature, seed=seed)
            body = {**prompt, **sampling_fields(sampling, capabilities)}
            if greedily is not None:
                body |= generation_config(Sampling(0.0 if greedily else temperature))
            if (text := await _several(ask, capabilities, body, vocabulary)) is None:
                continue
            differs = text != greedy
            if differs or temperature > 2:
                break
        return differs

    drawn = await samples(None)
    if drawn is None:
        return "temperature"  # nothing shows the contrary
    if capabilities.ids:
        return "temperature" if drawn else None
    if drawn:  # by the checkpoint's settings beside ours, if the field can override them
        return "generation_config" if await samples(True) is False else "temperature"
    return "generation_config" if await samples(False) else None


def _repeats(prompt: Mapping[str, Any], chunk: Chunk | None) -> bool:
    """Whether a whole answer of a chat begins with the message that it continues. Without
    log-probabilities it is all that shows a judge's choice."""
    return chunk is not None and chunk.text.strip().startswith(_continued(prompt))


def _made(prompt: Mapping[str, Any], chunk: Chunk) -> str:
    """The text of a whole answer, without the message of a chat that llama.cpp repeats in it."""
    return chunk.text.strip().removeprefix(_continued(prompt)).strip()


def _continued(prompt: Mapping[str, Any]) -> str:
    """The message that a chat continues; empty for a completion."""
    messages = prompt.get("messages") or [{"content": ""}]
    return str(messages[-1]["content"]).strip()


def _check_vocabulary(shown: Mapping[int, bytes], prompts: PromptRenderer) -> None:
    """Refuses a tokenizer by which most of the tokens that the server shows are others."""
    pieces = prompts.tokenizer.pieces
    other = [
        i for i, text in shown.items() if pieces[i : i + 1] != [text] and text != b"\xef\xbf\xbd"
    ]
    if 2 * len(other) > len(shown):
        i = other[0]
        here = pieces[i].decode("utf-8", "replace") if 0 <= i < len(pieces) else None
        raise Unsupported(
            f"the tokenizer is not the served model's: token {i} is "
            f"{shown[i].decode('utf-8', 'replace')!r} there and {here!r} here; name the served "
            "model's as `tokenizer`"
        )


def _wishes(form: str) -> list[dict[str, Any]]:
    """Fields to request, from the most to the least."""
    if form == "chat":
        requests: list[dict[str, Any]] = [{"logprobs": True, "top_logprobs": top} for top in TOP]
    else:
        requests = [{"logprobs": top} for top in TOP]
    return [*(wish | EXTRAS for wish in requests), EXTRAS, *requests, {}]


def _top(wish: Mapping[str, Any]) -> int:
    """The log-probabilities a position that the fields request."""
    return int(wish.get("top_logprobs", wish.get("logprobs", 0)))


async def _more(
    ask: Ask,
    capabilities: ServerCapabilities,
    ids: list[int],
    vocabulary: Vocabulary,
    behind: Mapping[int, float],
) -> ServerCapabilities:
    """What builds on log-probabilities: those of named tokens, and those of the prompt.

    `behind` are those of the token behind `ids`, by id.
    """
    if not capabilities.top or capabilities.prompt != "ids":
        return capabilities
    if capabilities.numbered:
        answer = await _tried(ask, capabilities, {"prompt": ids, **ONE, "logprobs": WIDE})
        shown = len(first_logprobs(answer, vocabulary)) if answer is not None else 0
        capabilities = replace(capabilities, wide=shown if shown > capabilities.top else 0)
    body = {"prompt": ids, **ONE, **(EXTRAS if capabilities.ids else {}), "logprobs": 1}
    # The likeliest of three tokens has a third of what they have together; among all, far less.
    unlikely = [i for i in range(len(behind) + 3) if i not in behind][:3]
    answer = await _tried(ask, capabilities, {**body, "allowed_token_ids": unlikely})
    if answer is not None:
        told = first_logprobs(answer, vocabulary)
        drawn = [told[i] for i in unlikely if i in told]
        capabilities = replace(capabilities, lookups=bool(drawn) and exp(max(drawn)) < 0.25)
    answer = await _tried(ask, capabilities, {**body, "prompt_logprobs": 1})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(capabilities, prompt_logprobs="prompt_logprobs")
    if await _is_sglang(ask, ids, vocabulary, behind):
        return replace(capabilities, prompt_logprobs="sglang")
    answer = await _tried(ask, capabilities, {**body, "echo": True})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(capabilities, prompt_logprobs="echo")
    return capabilities


async def _takes_min_tokens(
    ask: Ask, capabilities: ServerCapabilities, body: dict[str, Any]
) -> bool:
    """Whether the server reads `min_tokens`: then it refuses more of them than `max_tokens`."""
    too_many = await _tried(ask, capabilities, {**body, "min_tokens": body["max_tokens"] + 1})
    if too_many is not None:
        return False
    return await _tried(ask, capabilities, {**body, "min_tokens": body["max_tokens"]}) is not None


def _verifies(answer: Mapping[str, Any], ids: list[int], vocabulary: Vocabulary) -> bool:
    """Whether it holds the log-probabilities of a prompt and of the token behind it."""
    with suppress(WorkerUnavailable), checked_answer("the server"):
        scored = prompt_logprobs(answer, ids, 1, vocabulary)
        return scored is not None and next_token(answer, len(ids), vocabulary) is not None
    return False


async def _is_sglang(
    ask: Ask, ids: list[int], vocabulary: Vocabulary, behind: Mapping[int, float]
) -> bool:
    """Whether it has SGLang's own path, and that gives what a judge asks for, by the same model.

    The path names no model. Beside an adapter (`base:adapter`), or behind a router with several
    models, another may answer there: then its log-probabilities are not those `behind` the ids.
    """
    named, start = sorted({0, len(ids), *behind}), len(ids) - 2
    body = sglang.request_body(ids, start=start, top=1, named=named, owner="")
    try:
        with checked_answer("the server"):
            answer = sglang.as_completion(await ask(sglang.PATH, body), ids, Sampling())
            shown = first_logprobs(answer, vocabulary)
            if not (set(named) <= shown.keys() and _verifies(answer, ids, vocabulary)):
                return False
            apart = median(abs(shown[i] - logprob) for i, logprob in behind.items())
    except BatonError as error:  # closed to us, or another's: the server is used without it
        log.info("%s is not used: %s", sglang.PATH, error)
        return False
    if not apart <= ROUNDING:
        log.warning(
            "%s is not used: its log-probabilities are %.2g nats from those of the named model, so "
            "another model answers there",
            sglang.PATH,
            apart,
        )
        return False
    return True


async def _tried(
    ask: Ask, capabilities: ServerCapabilities, body: dict[str, Any]
) -> Mapping[str, Any] | None:
    try:
        return await ask(capabilities.path, body)
    except (Declined, Broke):
        return None
