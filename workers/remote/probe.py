"""What a server can do, found out by asking it for one token in ever simpler ways."""

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
    ServerCapabilities,
    Vocabulary,
    checked_answer,
    first_law,
    following,
    prompt_laws,
    read,
)
from workers.remote.request_builder import RequestBuilder
from workers.text.prompt import PromptRenderer

log = logging.getLogger(__name__)

Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""(path, body) to the answer's JSON; raises the errors of `orchestrator.errors`."""

TRACE = Transcript((Message("user", "What is 1 + 1?"),), (Segment("policy", "1 + 1 = 2.\n\n"),))
ONE = {"max_tokens": 1, "temperature": 0}


async def probe(ask: Ask, prompts: PromptRenderer, vocabulary: Vocabulary) -> ServerCapabilities:
    """A server's abilities; a handful of calls.

    Raises:
        Unsupported: it cannot continue a text in any way that we know.
        WorkerError: it could not be asked, or has no such model.
    """
    requests, ids = RequestBuilder(prompts), prompts.transcript(TRACE)
    refused: Exception | None = None
    absent: Absent | None = None
    for form in ("ids", "text", "chat"):
        able = ServerCapabilities(form)
        try:
            prompt = requests.body(form, ids, TRACE)
        except Unsupported as error:
            refused = error
            continue
        for wish in _wishes(form):
            try:
                answer = await ask(able.path, {**prompt, **ONE, **wish})
            except Absent as error:  # nothing of that kind here
                absent = error
                break
            except Declined as error:  # perhaps it takes less
                refused = error
                continue
            if form == "chat" and (answer.get("usage") or {}).get("prompt_tokens") != len(ids):
                refused = Unsupported("it does not continue the last message of a chat")
                break
            piece, law = read(answer, vocabulary), first_law(answer, vocabulary)
            told = piece is not None and piece.tokens is not None
            able = replace(able, ids=told, top=_asked(wish) if law else 0)
            return await _more(ask, able, ids, vocabulary)
    if refused is None and absent is not None:
        raise absent
    why = refused if isinstance(refused, Unsupported) else "it declines all that was tried"
    log.error("the server cannot continue a text: %s", refused)
    raise Unsupported(f"the model's server cannot continue a text: {why}")


def _wishes(form: str) -> list[dict[str, Any]]:
    """Fields to ask for, from the most to the least."""
    if form == "chat":
        asked: list[dict[str, Any]] = [{"logprobs": True, "top_logprobs": top} for top in TOP]
    else:
        asked = [{"logprobs": top} for top in TOP]
    return [*(wish | EXTRAS for wish in asked), EXTRAS, *asked, {}]


def _asked(wish: Mapping[str, Any]) -> int:
    return int(wish.get("top_logprobs", wish.get("logprobs", 0)))


async def _more(
    ask: Ask, able: ServerCapabilities, ids: list[int], vocabulary: Vocabulary
) -> ServerCapabilities:
    """What builds on log-probabilities: those of named tokens, and those of the prompt."""
    if not able.top or able.prompt != "ids":
        return able
    body = {"prompt": ids, **ONE, **(EXTRAS if able.ids else {}), "logprobs": 1}
    named = [0, len(ids), 2 * len(ids)]  # three tokens that are hardly all among the likeliest
    answer = await _tried(ask, able, {**body, "logprob_token_ids": named})
    if answer is not None and set(named) <= first_law(answer, vocabulary).keys():
        able = replace(able, labels=True)
    answer = await _tried(ask, able, {**body, "prompt_logprobs": 1})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(able, prompt_logprobs="prompt_logprobs")
    answer = await _tried(ask, able, {**body, "echo": True})
    if answer is not None and _verifies(answer, ids, vocabulary):
        return replace(able, prompt_logprobs="echo")
    return able


def _verifies(answer: Mapping[str, Any], ids: list[int], vocabulary: Vocabulary) -> bool:
    """Whether it holds the laws of a prompt and the one behind it."""
    with suppress(WorkerUnavailable), checked_answer("the server"):
        told = prompt_laws(answer, ids, 1, vocabulary)
        return told is not None and following(answer, len(ids), vocabulary) is not None
    return False


async def _tried(
    ask: Ask, able: ServerCapabilities, body: dict[str, Any]
) -> Mapping[str, Any] | None:
    try:
        return await ask(able.path, body)
    except Declined:
        return None
