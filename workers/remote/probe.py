"""Finds what a server can do, by requests for one token with fewer and fewer fields."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from orchestrator.errors import Unsupported, WorkerUnavailable
from orchestrator.types import Message, Segment, Transcript
from workers.remote.errors import Absent, Declined
from workers.remote.protocol import (
    EXTRAS,
    TOP,
    WIDE,
    ServerCapabilities,
    Vocabulary,
    checked_answer,
    first_logprobs,
    next_token,
    parse_chunk,
    prompt_logprobs,
    shown_bytes,
)
from workers.remote.request_builder import RequestBuilder
from workers.text.prompt import PromptRenderer

log = logging.getLogger(__name__)

Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""(path, body) to the answer's JSON; raises the errors of `orchestrator.errors`."""

STEP = Segment("policy", "1 + 1 = 2.\n\n")
TRACE = Transcript((Message("user", "What is 1 + 1?"),)).extend(STEP)
ONE = {"max_tokens": 1, "temperature": 0}


async def probe(ask: Ask, prompts: PromptRenderer, vocabulary: Vocabulary) -> ServerCapabilities:
    """A server's capabilities, by a few calls of one token.

    Raises:
        Unsupported: it cannot continue a text in any way that we know.
        WorkerError: it cannot be reached, or has no such model.
    """
    requests, ids = RequestBuilder(prompts), prompts.transcript(TRACE)
    refused: Exception | None = None
    absent: Absent | None = None
    for form in ("ids", "text", "chat"):
        capabilities = ServerCapabilities(form)
        try:
            prompt = requests.body(form, ids, TRACE)
        except Unsupported as error:
            refused = error
            continue
        for wish in _wishes(form):
            try:
                answer = await ask(capabilities.path, {**prompt, **ONE, **wish})
            except Absent as error:  # no such endpoint
                absent = error
                break
            except Declined as error:  # it may accept fewer fields
                refused = error
                continue
            read = (answer.get("usage") or {}).get("prompt_tokens")
            if form == "chat" and read != len(ids):
                refused = Unsupported("it does not continue the last message of a chat")
                break
            if form == "text" and read is not None and read != len(ids):
                refused = Unsupported(
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
            )
            _check_vocabulary(shown, prompts)
            return await _more(ask, capabilities, ids, vocabulary)
    if refused is None and absent is not None:
        raise absent
    why = (
        refused
        if isinstance(refused, Unsupported)
        else "it refuses every request that was tried; check its log and the model's name"
    )
    log.error("the server cannot continue a text: %s", refused)
    raise Unsupported(f"the model's server cannot continue a text: {why}")


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
    ask: Ask, capabilities: ServerCapabilities, ids: list[int], vocabulary: Vocabulary
) -> ServerCapabilities:
    """What builds on log-probabilities: those of named tokens, and those of the prompt."""
    if not capabilities.top or capabilities.prompt != "ids":
        return capabilities
    if capabilities.numbered:
        answer = await _tried(ask, capabilities, {"prompt": ids, **ONE, "logprobs": WIDE})
        shown = len(first_logprobs(answer, vocabulary)) if answer is not None else 0
        capabilities = replace(capabilities, wide=shown if shown > capabilities.top else 0)
    body = {"prompt": ids, **ONE, **(EXTRAS if capabilities.ids else {}), "logprobs": 1}
    named = [0, len(ids), 2 * len(ids)]  # three tokens that are hardly all among the likeliest
    answer = await _tried(ask, capabilities, {**body, "logprob_token_ids": named})
    if answer is not None and set(named) <= first_logprobs(answer, vocabulary).keys():
        capabilities = replace(capabilities, labels=True)
    answer = await _tried(ask, capabilities, {**body, "prompt_logprobs": 1})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(capabilities, prompt_logprobs="prompt_logprobs")
    answer = await _tried(ask, capabilities, {**body, "echo": True})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(capabilities, prompt_logprobs="echo")
    return capabilities


def _verifies(answer: Mapping[str, Any], ids: list[int], vocabulary: Vocabulary) -> bool:
    """Whether it holds the log-probabilities of a prompt and of the token behind it."""
    with suppress(WorkerUnavailable), checked_answer("the server"):
        scored = prompt_logprobs(answer, ids, 1, vocabulary)
        return scored is not None and next_token(answer, len(ids), vocabulary) is not None
    return False


async def _tried(
    ask: Ask, capabilities: ServerCapabilities, body: dict[str, Any]
) -> Mapping[str, Any] | None:
    try:
        return await ask(capabilities.path, body)
    except Declined:
        return None
