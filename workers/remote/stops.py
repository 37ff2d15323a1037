"""The request fields by which a server stops by itself where a text ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.remote.capabilities import ServerCapabilities
from workers.text.continuation import Continuation
from workers.text.tokenizer import Tokenizer


def stop_fields(
    text: Continuation, tokenizer: Tokenizer, able: ServerCapabilities
) -> dict[str, Any]:
    """Those of a generation.

    Without ids a server stops at the end of the thought alone, which may be invisible in the text:
    it cuts any other stop string off without returning which it was. Those are searched for here.
    """
    criteria, closing = text.criteria, text.closing
    if criteria.min_tokens:  # the server would let none of these come; those that may, we find
        ends = set(text.ends) - ({tokenizer.close_id} if closing else set())
        least = min(criteria.min_tokens, text.max_tokens)
        return {"min_tokens": least, "stop_token_ids": sorted(ends)}
    if not able.reads_ids:
        stop = marker_stop(closing, tokenizer, able) if closing else {}
        return stop | shown_markers(tokenizer, able)
    texts = looked_for(text, (*criteria.until, *criteria.stop))
    fields: dict[str, Any] = {}
    if closing and tokenizer.close_id is not None:
        fields["stop_token_ids"] = [tokenizer.close_id]
    else:
        texts += [stop for stop, _ in tokenizer.stops(text.thinking)]
    return fields | ({"stop": texts} if texts else {})


def looked_for(text: Continuation, stops: Sequence[str]) -> list[str]:
    """Those of some strings at which a server may stop: none that begins with the white space
    before an answer."""
    begins_answer = text.call.transcript.begins_answer
    return [stop for stop in stops if not begins_answer or stop == stop.lstrip()]


def marker_stop(closing: str, tokenizer: Tokenizer, able: ServerCapabilities) -> dict[str, Any]:
    """Those by which a server without ids stops at a marker, also if its text hides it."""
    fields: dict[str, Any] = {"stop": [closing]}
    if able.extras and tokenizer.close_id is not None:
        fields |= {"stop_token_ids": [tokenizer.close_id]}
    return fields


def shown_markers(tokenizer: Tokenizer, able: ServerCapabilities) -> dict[str, Any]:
    """The one by which llama.cpp's text shows the markers of a thought."""
    if not able.extras or tokenizer.close_id is None or tokenizer.format is None:
        return {}
    return {"preserved_tokens": [tokenizer.format.open.strip(), tokenizer.format.close.strip()]}
