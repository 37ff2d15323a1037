"""Reads responses as they come: of bounded size, and UTF-8, as JSON and event streams are.

A `charset` in the headers is ignored, and a compressed body is refused: nothing asked for either.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from orchestrator.errors import WorkerUnavailable

HEADERS = {"accept-encoding": "identity"}
"""Sent with every request: a few compressed bytes could expand to very many."""
ANSWER_BYTES = 2 << 20
TOKEN_BYTES = 8 << 10  # of a token with 20 log-probabilities, by name
PROMPT_TOKEN_BYTES = 32  # of a prompt token's id or text, which a server may echo
EVENT_BYTES = 8 << 20  # of a stream's event, however many tokens are asked for
_COMPRESSED = re.compile(r"\b(gzip|deflate|br|zstd|compress)\b")
"""Codings that change the bytes; some servers put a charset or `none` in that header."""
_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)  # the next chunk may begin with \n


def most_bytes(body: Mapping[str, Any]) -> int:
    """Return the largest size of a request's answer, by the tokens that it makes or scores."""
    prompt = len(body.get("prompt") or body.get("input_ids") or ())
    scored = any(body.get(field) for field in ("prompt_logprobs", "echo", "return_logprob"))
    made = int(body.get("max_tokens") or 0) + prompt * scored
    return ANSWER_BYTES + PROMPT_TOKEN_BYTES * prompt + TOKEN_BYTES * made


async def read(response: httpx.Response, most: int = ANSWER_BYTES) -> bytes:
    """Read the whole body.

    Raises:
        WorkerUnavailable: it has more than `most` bytes, or is compressed.
    """
    async with aclosing(_pieces(response, most)) as pieces:
        return b"".join([piece async for piece in pieces])


async def events(response: httpx.Response, most: int) -> AsyncGenerator[str, None]:
    """Yield the data of each server-sent event that has some.

    Raises:
        WorkerUnavailable: a line or the whole stream is too long, or it is compressed.
        UnicodeDecodeError: it is not UTF-8.
    """
    async with aclosing(_lines(response, most)) as lines:
        data = list[bytes]()
        async for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line:
                if any(data):  # a bare `data:` keeps a connection alive
                    yield b"\n".join(data).decode()
                data = []
    if any(data):  # the last event may lack its empty line
        yield b"\n".join(data).decode()


async def _lines(response: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    begun, size, mark = list[bytes](), 0, codecs.BOM_UTF8  # which may precede the first line
    async with aclosing(_pieces(response, most)) as pieces:
        async for piece in pieces:
            begun.append(piece)
            size += len(piece)
            if size > EVENT_BYTES:
                raise _too_long(EVENT_BYTES)
            if b"\n" in piece or b"\r" in piece:
                *lines, rest = _LINE_END.split(b"".join(begun))
                begun, size = [rest], len(rest)
                for line in lines:
                    yield line.removeprefix(mark)
                    mark = b""
    yield b"".join(begun).removeprefix(mark).removesuffix(b"\r")


async def _pieces(response: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    coding = response.headers.get("content-encoding", "").strip().lower()
    if _COMPRESSED.search(coding):
        raise WorkerUnavailable(
            f"expected an uncompressed answer, got content-encoding {coding[:20]!r}: switch it off "
            "in the server or the proxy before it"
        )
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > most:
            raise _too_long(most)
        yield piece


def _too_long(most: int) -> WorkerUnavailable:
    return WorkerUnavailable(
        f"expected an answer of at most {most} bytes, got more: check that the url is that of an "
        "OpenAI-compatible server"
    )
