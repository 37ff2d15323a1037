"""The request fields that make a server stop where a text ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.remote.capabilities import ServerCapabilities
from workers.text.continuation import Continuation
from workers.text.tokenizer import Tokenizer


def stop_fields(
    text: Continuation, tokenizer: Tokenizer, able: ServerCapabilities
) -> dict[str, Any]:
    """Return the stop fields of a generation.

    A server without ids cuts a stop string off and does not return which it was. So it is asked to
    stop only at the end of the thought, which its text may hide; we search for the others.
    """
    criteria, closing = text.criteria, text.closing
    if criteria.min_tokens:  # the server suppresses these until then; we search for stop strings
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
    """Return the strings at which a server may stop; before an answer, where white space is
    dropped, none that begins with white space."""
    begins_answer = text.call.transcript.begins_answer
    return [stop for stop in stops if not begins_answer or stop == stop.lstrip()]


def marker_stop(closing: str, tokenizer: Tokenizer, able: ServerCapabilities) -> dict[str, Any]:
    """Return the fields that stop a server without ids at a marker, even if its text hides it."""
    fields: dict[str, Any] = {"stop": [closing]}
    if able.extras and tokenizer.close_id is not None:
        fields |= {"stop_token_ids": [tokenizer.close_id]}
    return fields


def shown_markers(tokenizer: Tokenizer, able: ServerCapabilities) -> dict[str, Any]:
    """Return the field that makes llama.cpp show the markers of a thought in its text."""
    if not able.extras or tokenizer.close_id is None or tokenizer.format is None:
        return {}
    return {"preserved_tokens": [tokenizer.format.open.strip(), tokenizer.format.close.strip()]}
