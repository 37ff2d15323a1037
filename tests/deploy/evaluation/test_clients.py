"""Clients: what a local one needs of its workers."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import HttpClient, LocalClient, RunsBetweenCalls, ask
from deploy.evaluation.service_client import error_of
from deploy.launch.deployment_file import DEFAULT_FILE, load
from orchestrator.errors import ConfigError, Unsupported, WorkerUnavailable
from tests.deploy.conftest import free_port
from tests.workers.scripted import Scripted
from workers.worker import ModelWorker


@pytest.mark.parametrize("fresh", [True, False])
async def test_answers_that_are_timed_share_no_cached_prefix(fresh: bool) -> None:
    large = Scripted(story=("2+2 is 4.", "It is four."))
    client = LocalClient(load(DEFAULT_FILE).args, {"large": large}, fresh=fresh)
    owners = []
    for _ in range(2):
        made = len(large.calls)
        await ask(client, "2+2?", Candidate.parse("large-only"))
        owners.append({one.call.owner for one in large.calls[made:]})
    (first,), (second,) = owners
    assert (first != second) == fresh
    assert fresh or not first


class Ahead(Scripted):
    """Notes how many calls it had when it was to end what runs ahead."""

    async def end_ahead(self) -> None:
        self.__dict__.setdefault("ended", []).append(len(self.calls))


@pytest.mark.parametrize("fresh", [True, False])
async def test_nothing_runs_ahead_of_one_answer_while_another_is_timed(fresh: bool) -> None:
    assert issubclass(ModelWorker, RunsBetweenCalls)  # by the method's name
    story = ("2+2 is 4.", "It is four.")
    small, large = Ahead(story=story), Ahead(story=story)
    client = LocalClient(load(DEFAULT_FILE).args, {"small": small, "large": large}, fresh=fresh)
    await ask(client, "2+2?", Candidate.parse("small-only"))
    made = len(small.calls)
    await ask(client, "2+2?", Candidate.parse("large-only"))
    assert vars(small).get("ended", []) == ([0, made] if fresh else [])
    assert len(vars(large).get("ended", [])) == 2 * fresh


END = {
    "policy": "large-only", "forced": False, "speculation": None, "trace_id": "t",
    "experiment": None, "arm": None, "metrics": {}, "steps": [],
}  # fmt: skip


async def test_a_stream_may_hold_what_unicode_calls_an_end_of_a_line() -> None:
    odd = "four\u2028\u0085five"
    for chunks, said in (
        ([{"choices": [{"delta": {"content": odd}}]}, {"choices": [], "baton": END}], odd),
        ("{half", None),
    ):
        lines = [chunks] if isinstance(chunks, str) else map(dump, chunks)
        text = ": ping\n\n" + "".join(f"data: {line}\n\n" for line in lines) + "data: [DONE]\n\n"
        client = HttpClient("http://127.0.0.1:1")
        client._client = httpx.AsyncClient(
            transport=httpx.MockTransport(
                lambda _, text=text: httpx.Response(
                    200, text=text, headers={"content-type": "text/event-stream"}
                )
            )
        )
        try:
            if said is None:
                with pytest.raises(WorkerUnavailable, match="expected JSON of a Baton service"):
                    await ask(client, "2+2?", Candidate.parse("large-only"))
            else:
                answer = await ask(client, "2+2?", Candidate.parse("large-only"))
                assert answer.text == odd
        finally:
            await client.aclose()


async def test_as_many_questions_are_asked_at_once_as_are_given() -> None:
    """The service answers here only after all have asked."""
    asked = asyncio.Barrier(101)
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    reply = f"{head}data: {dump({'choices': [], 'baton': END})}\n\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asked.wait()
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(60):
        host, port = server.sockets[0].getsockname()
        client = HttpClient(f"http://{host}:{port}")
        candidate = Candidate.parse("large-only")
        await asyncio.gather(*(ask(client, "2+2?", candidate) for _ in range(asked.parties)))
        await client.aclose()


def dump(data: object) -> str:
    return json.dumps(data, ensure_ascii=False)


def test_a_refused_key_says_which_variable_it_came_from() -> None:
    request = httpx.Request("POST", "http://127.0.0.1:8000/v1/chat/completions")
    body = {"error": {"message": "no API key", "param": None, "code": None}}
    for given, said in (({}, "$BATON_API_KEY"), ({"names": ["OTHER"]}, "$OTHER")):
        error = error_of(httpx.Response(401, json=body, request=request), **given)
        assert str(error).startswith("http://127.0.0.1:8000/: no API key; ")
        assert str(error).endswith(f"takes its key from {said}")
    assert "takes" not in str(error_of(httpx.Response(403, json=body, request=request)))


def test_a_policy_that_the_pair_cannot_run_is_no_wrong_request() -> None:
    """So it is a failed answer beside those of the other policies, as without a service."""
    body = {"error": {"message": "bild needs one vocabulary", "code": "unsupported_policy"}}
    request = httpx.Request("POST", "http://127.0.0.1:8000/v1/chat/completions")
    error = error_of(httpx.Response(400, json=body, request=request))
    assert isinstance(error, Unsupported)
    assert "bild needs one vocabulary" in str(error)


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("127.0.0.1:8000", ConfigError, "expected an address as http://HOST:PORT"),
        ("http://127.0.0.1:PORT", WorkerUnavailable, "is the service running there"),
    ],
)
async def test_a_service_that_cannot_be_reached(
    url: str, kind: type[Exception], message: str
) -> None:
    client = HttpClient(url.replace("PORT", str(free_port())))
    try:
        with pytest.raises(kind, match=message):
            await ask(client, "2+2?", Candidate.parse("large-only"))
    finally:
        await client.aclose()
