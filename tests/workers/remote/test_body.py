"""How much is read of a server's answer that has no end, or that is small and stands for much."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from orchestrator.errors import WorkerUnavailable
from workers.remote.body import (
    ANSWER_BYTES,
    EVENT_BYTES,
    PROMPT_TOKEN_BYTES,
    TOKEN_BYTES,
    events,
    most_bytes,
    read,
)

PIECE = 1 << 16
BOUND = 1 << 18
FAR = 1 << 40
BOMB = gzip.compress(bytes(256 << 20), 9)


class Endless(httpx.AsyncByteStream):
    """A beginning, and then the same again and again; counts what was taken."""

    def __init__(self, begin: bytes, again: bytes) -> None:
        self.begin, self.piece, self.taken = begin, again * (PIECE // len(again)), 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.taken += len(self.begin)
        yield self.begin
        while True:
            self.taken += len(self.piece)
            yield self.piece


SHAPES = {
    "spaces": (b"", b" "),
    "a text": (b'{"choices": [{"text": "', b"a"),
    "a line": (b"data: ", b"a"),
    "a comment": (b": ", b"a"),
    "comments": (b"", b": ping\n\n"),
    "lines of one event": (b"", b"data: a\n"),
    "empty lines": (b"", b"\r\n"),
    "empty events": (b"", b"data:\n\n"),
    "carriage returns": (b"", b"\r"),
}


async def whole(response: httpx.Response, most: int, streamed: bool) -> None:
    if not streamed:
        await read(response, most)
        return
    async for _ in events(response, most):
        pass


async def taken(stream: Endless, most: int, streamed: bool) -> int:
    """The bytes of an endless answer that were read before it was refused."""
    with pytest.raises(WorkerUnavailable, match="expected an answer of at most"):
        await whole(httpx.Response(200, stream=stream), most, streamed)
    return stream.taken


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", list(SHAPES))
async def test_an_answer_without_end_is_read_up_to_a_bound(name: str, streamed: bool) -> None:
    assert await taken(Endless(*SHAPES[name]), BOUND, streamed) <= BOUND + PIECE + 99


@pytest.mark.parametrize("name", ["spaces", "a text", "a line", "a comment"])
async def test_a_line_without_end_is_read_up_to_a_bound(name: str) -> None:
    """Whatever the size of all lines may be."""
    assert await taken(Endless(*SHAPES[name]), FAR, streamed=True) <= EVENT_BYTES + PIECE + 99


@pytest.mark.parametrize("streamed", [False, True])
async def test_nothing_is_read_of_what_is_compressed(streamed: bool) -> None:
    assert len(BOMB) < 1 << 20
    stream = Endless(BOMB, b"\0")
    response = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=stream)
    with pytest.raises(WorkerUnavailable, match="content-encoding 'gzip'"):
        await whole(response, FAR, streamed)
    assert stream.taken == 0


def test_the_size_of_an_answer_follows_what_is_asked_for() -> None:
    prompt, more = {"prompt": [1] * 1000}, ANSWER_BYTES + 1000 * PROMPT_TOKEN_BYTES
    assert most_bytes({"messages": []}) == ANSWER_BYTES
    assert most_bytes(prompt | {"max_tokens": 20}) == more + 20 * TOKEN_BYTES
    for field in ("prompt_logprobs", "echo", "return_logprob"):
        assert most_bytes(prompt | {field: 1}) == more + 1000 * TOKEN_BYTES
    ids = {"input_ids": [1] * 1000, "return_logprob": True}
    assert most_bytes(ids) == more + 1000 * TOKEN_BYTES
