"""The remote worker and servers that misbehave: each failure has its error, and heals."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trustme

from orchestrator.errors import (
    ConfigError,
    ContextLengthExceeded,
    Contradiction,
    Misconfigured,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.http.errors import http_error
from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    StopCriteria,
    Transcript,
    Usage,
)
from orchestrator.worker import Call, Delta
from workers.embedded.checkpoints import resolve
from workers.remote import backend, server
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.dialects.vllm import VLLM
from workers.remote.errors import Absent, Declined
from workers.remote.server import Server
from workers.retry import CircuitBreaker
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

TOKENIZER = load_tokenizer(resolve("embedded:small"))
TEXT = "14*3=42."
IDS = list(TOKENIZER.encode(TEXT))
QUESTION = Call("r1", Transcript((Message("user", "What is 14*3?"),)), "small")
SPAN = StopCriteria(50)
Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]


def http(status: int, body: bytes | str, kind: str = "application/json", *headers: str) -> Reply:
    data = body.encode() if isinstance(body, str) else body
    head = [f"HTTP/1.1 {status} So", f"content-type: {kind}", f"content-length: {len(data)}"]

    async def reply(_: Any, writer: asyncio.StreamWriter, __: Any) -> None:
        writer.write("\r\n".join([*head, *headers, "", ""]).encode() + data)
        await writer.drain()

    return reply


def refusal(status: int, message: str, *headers: str) -> Reply:
    error = {"message": message, "type": "x", "param": None, "code": status}
    return http(status, json.dumps({"error": error}), "application/json", *headers)


def chunk(ids: list[int], finish: str | None = None) -> str:
    choice = {
        "index": 0,
        "text": TOKENIZER.decode(ids),
        "token_ids": ids,
        "logprobs": {
            "tokens": [f"token_id:{i}" for i in ids],
            "token_logprobs": [-0.5] * len(ids),
            "top_logprobs": [{f"token_id:{i}": -0.5} for i in ids],
        },
        "finish_reason": finish,
    }
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": len(IDS)}
END = f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\ndata: [DONE]\n\n"


def events(*parts: str) -> Reply:
    return http(200, "".join(parts), "text/event-stream")


async def well(reader: Any, writer: Any, body: dict[str, Any]) -> None:
    """As it should be: the text from where the prompt ends, a token a chunk."""
    done = len(body["prompt"]) - well.start  # type: ignore[attr-defined]
    parts = [chunk([i]) for i in IDS[done:]]
    await events(*parts, chunk([], "stop"), END)(reader, writer, body)


def breaks_off(after: int) -> Reply:
    """The connection is cut after some tokens."""

    async def reply(_: Any, writer: asyncio.StreamWriter, __: Any) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n"
        writer.write((head + "".join(chunk([i]) for i in IDS[:after])).encode())
        await writer.drain()
        writer.close()

    return reply


async def hangs(reader: asyncio.StreamReader, *_: Any) -> None:
    await reader.read()  # until the client is gone


class Odd:
    """A server that gives the listed replies, one a request, the last for ever."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []
        self.connections = self.gone = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(
                    line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2]
                )
                data = await reader.readexactly(int(fields.get("content-length", 0)))
                self.bodies.append(json.loads(data) if data else {})
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                await reply(reader, writer, self.bodies[-1])
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self.gone += 1
            writer.close()


@asynccontextmanager
async def odd(
    *replies: Reply, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[Odd, ModelWorker]]:
    """An odd server, and a remote worker that knows already what it can do."""
    behind = Odd(*replies)
    listening = await asyncio.start_server(behind.serve, "127.0.0.1", 0, ssl=tls)
    behind.port = listening.sockets[0].getsockname()[1]
    url = f"http{'s' if tls else ''}://127.0.0.1:{behind.port}"
    worker = ModelWorker(RemoteBackend(Server(url, **options), "m", TOKENIZER))
    worker.backend._capabilities = ServerCapabilities("ids", VLLM, top=20)
    well.start = len(worker.prompts.transcript(QUESTION.transcript))  # type: ignore[attr-defined]
    try:
        yield behind, worker
    finally:
        await worker.backend.aclose()
        listening.close()


async def write(
    worker: ModelWorker, criteria: StopCriteria = SPAN, *, stream: bool = True
) -> list[Delta | Generation]:
    items = worker.generate(QUESTION, criteria, Sampling(), stream=stream)
    return [item async for item in items]


def whole(items: list[Delta | Generation]) -> Generation:
    *deltas, last = items
    assert isinstance(last, Generation)
    if deltas:
        assert "".join(d.text for d in deltas if isinstance(d, Delta)) == last.segment.text
    return last


async def test_all_is_well() -> None:
    async with odd(well) as (behind, worker):
        for _ in range(3):
            generation = whole(await write(worker))
            assert generation.segment.text == TEXT
            assert generation.segment.finish == "eos"
            assert (generation.usage.prompt, generation.usage.generated) == (9, len(IDS))
        assert behind.connections == 1  # connections are used again


@pytest.mark.parametrize("status", [429, 503])
async def test_too_busy_and_told_when(status: int) -> None:
    async with odd(refusal(status, "busy", "retry-after: 0"), well) as (behind, worker):
        assert whole(await write(worker)).segment.text == TEXT
        assert len(behind.bodies) == 2
    async with odd(refusal(status, "busy", "Retry-After: 77")) as (behind, worker):
        with pytest.raises(Overloaded) as caught:
            await write(worker)
        assert caught.value.retry_after_s == 77
        assert len(behind.bodies) == 1  # longer than anybody waits
        error = http_error(caught.value)
        # No longer than for a place of ours: OpenAI's clients do not come again for more.
        assert (error.status, error.headers["retry-after"]) == (503, "59")


@pytest.mark.parametrize(
    "header", ["soon", "Thu, 01 Jan 1970 00:00:00 GMT", "nan", "-5", "inf", "1e999"]
)
async def test_odd_times_to_come_back(header: str) -> None:
    async with odd(refusal(429, "busy", f"retry-after: {header}"), well) as (_, worker):
        assert whole(await write(worker)).segment.text == TEXT


@pytest.mark.parametrize("after", [0, 1, len(IDS) - 1, len(IDS)])
async def test_a_stream_that_breaks_off_goes_on(after: int) -> None:
    """No token is lost, and none is made twice: the rest is asked for behind what arrived."""
    async with odd(breaks_off(after), well) as (behind, worker):
        segment = whole(await write(worker)).segment
        assert (segment.text, list(segment.tokens)) == (TEXT, IDS)
        assert len(segment.logprobs) == len(IDS)
        assert behind.bodies[1]["prompt"] == behind.bodies[0]["prompt"] + IDS[:after]
        assert behind.bodies[1]["max_tokens"] == behind.bodies[0]["max_tokens"] - after


async def test_a_stream_that_gets_on_by_one_token_a_try() -> None:
    async with odd(breaks_off(0), breaks_off(2), well, retries=1) as (behind, worker):
        assert whole(await write(worker)).segment.text == TEXT  # progress renews the tries
        assert len(behind.bodies) == 3


async def test_a_step_with_a_delimiter_inside_costs_what_all_of_its_calls_cost() -> None:
    """The server stops inside a block of code, and is asked to go on."""
    first, rest = "```\na\n\n", "b\n```\n\n"

    def answers(text: str, prompt: int, cached: int) -> Reply:
        spent = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        usage = json.dumps({"choices": [], "usage": spent | {"completion_tokens": 3}})
        stop = chunk([], "stop").replace('"index"', '"stop_reason": "\\n\\n", "index"')
        written = chunk(TOKENIZER.encode(text))
        return events(written, stop, f"data: {usage}\n\n", "data: [DONE]\n\n")

    ids = [*TOKENIZER.encode(first), *TOKENIZER.encode(rest)]
    criteria = StopCriteria(64, until=("\n\n",))
    async with odd(answers(first, 90, 40), answers(rest, 95, 90)) as (behind, worker):
        generation = whole(await write(worker, criteria))
    assert len(behind.bodies) == 2
    assert list(generation.segment.tokens) == ids
    assert generation.usage == Usage(90, 40, len(ids), 3 + len(TOKENIZER.encode(rest)))


async def test_silence_counts_as_a_loss() -> None:
    async with odd(hangs, well, silence_s=0.2) as (behind, worker):
        assert whole(await write(worker)).segment.text == TEXT
        assert behind.gone >= 1
    async with odd(hangs, silence_s=0.1, retries=0) as (_, worker):
        with pytest.raises(WorkerUnavailable, match="ReadTimeout"):
            await write(worker)
        assert "no answer within 0.1 s" in (await worker.backend.trouble(timeout_s=0.1) or "")


async def test_nobody_listens() -> None:
    worker = ModelWorker(RemoteBackend(Server("http://127.0.0.1:9", retries=1), "m", TOKENIZER))
    with pytest.raises(WorkerUnavailable, match=r"127.0.0.1:9"):
        await write(worker)
    assert "127.0.0.1:9" in (await worker.backend.trouble() or "")
    await worker.backend.aclose()


async def test_a_model_that_is_not_there_is_named_before_any_request() -> None:
    listed = http(200, '{"data": []}')
    async with odd(listed, refusal(404, "The model `m` does not exist")) as (behind, worker):
        worker.backend._capabilities = None
        assert "The model `m` does not exist" in (await worker.backend.trouble() or "")
        tried = len(behind.bodies)
        assert tried > 1
        behind.replies[:] = [listed]
        assert "does not exist" in (await worker.backend.trouble() or "")
        assert len(behind.bodies) == tried + 1  # the list alone: it is probed again later


async def test_a_server_is_probed_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    probed, ends = 0, asyncio.Event()

    async def slow(*_: Any) -> ServerCapabilities:
        nonlocal probed
        probed += 1
        await ends.wait()
        if probed < 3:
            raise Absent("no such model") if probed < 2 else Unsupported("it continues no text")
        return ServerCapabilities("ids", VLLM)

    monkeypatch.setattr(backend, "probe", slow)
    async with odd(http(200, '{"data": []}')) as (_, worker):
        server = worker.backend
        server._capabilities = None
        for _ in range(2):
            assert "still finds out" in (await server.trouble(timeout_s=0.1) or "")
        assert probed == 1
        ends.set()
        while server._capabilities is None and not server._probe_again:
            await asyncio.sleep(0)
        assert [await server.trouble() for _ in range(2)] == ["no such model"] * 2
        assert probed == 1  # a failure is held for a while
        for times in (2, 3):  # others can use what this deployment's policies cannot
            server._probe_again = 0.0
            assert (await server.trouble(), probed) == (None, times)
        assert (await server.trouble(), probed) == (None, 3)


async def test_a_redirect_is_not_followed() -> None:
    async with odd(well) as (target, _):
        away = f"location: http://127.0.0.1:{target.port}/v1/completions"
        async with odd(http(307, "", "text/plain", away)) as (behind, worker):
            with pytest.raises(WorkerError, match="redirect") as caught:
                await write(worker)
            assert not isinstance(caught.value, WorkerUnavailable)  # another try would not help
            assert len(behind.bodies) == 1
        assert target.bodies == []


async def test_a_log_probability_that_is_nan_is_an_error() -> None:
    """Servers in Python spell it so; and minus infinity, which is a number."""
    query = LabelQuery((Message("user", "Score?"),), "", ("0", "1"))
    labels = [TOKENIZER.encode(label)[0] for label in query.labels]
    top = {f"token_id:{labels[0]}": float("nan"), f"token_id:{labels[1]}": -0.5}
    shown = {"tokens": [f"token_id:{labels[1]}"], "token_logprobs": [-0.5], "top_logprobs": [top]}
    choice = {"text": "", "token_ids": [labels[1]], "logprobs": shown}
    async with odd(http(200, json.dumps({"choices": [choice]}))) as (behind, worker):
        with pytest.raises(WorkerError, match="NaN"):
            await worker.classify(QUESTION, query)
        assert len(behind.bodies) == 1  # it would come out the same again
    top[f"token_id:{labels[0]}"] = -inf
    async with odd(http(200, json.dumps({"choices": [choice]}))) as (_, worker):
        assert (await worker.classify(QUESTION, query)).probabilities == (0.0, 1.0)


@pytest.mark.parametrize("top", [None, {"\ufffd": -0.1, "no token": -2.5}])
async def test_the_token_that_was_made_is_no_score(top: dict[str, float] | None) -> None:
    """Where the probe saw log-probabilities, one token without them would be certainty."""
    query = LabelQuery((Message("user", "Score?"),), "", ("0", "1"))
    made = TOKENIZER.encode("1")[0]
    shown = {"tokens": ["1"], "token_logprobs": [-0.5], "top_logprobs": [top]}
    choice = {"text": "1", "token_ids": [made], "logprobs": shown}
    async with odd(http(200, json.dumps({"choices": [choice]}))) as (_, worker):
        with pytest.raises(WorkerError, match="expected log-probabilities"):
            await worker.classify(QUESTION, query)


@pytest.mark.parametrize("body", ["", "<html>", "[]", '{"choices": []}', '{"choices": [{}]}'])
async def test_nonsense_instead_of_a_law(body: str) -> None:
    async with odd(http(200, body), retries=0) as (_, worker):
        with pytest.raises(WorkerError, match="expected"):
            await worker.classify(QUESTION, LabelQuery((Message("user", "?"),), "", ("1", "2")))


TOO_LONG = "This model's maximum context length is 10: ask ops@10.0.0.7 with key sk-123"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(400, TOO_LONG), ContextLengthExceeded),
        (refusal(400, "temperature must be below 3"), Declined),
        (http(422, '{"detail": "Unexpected fields"}'), Declined),
        (http(400, '{"message": "old vLLM", "object": "error"}'), Declined),
        (http(413, "no JSON"), Declined),
        (refusal(404, "The model `x` does not exist"), Absent),
        (refusal(401, "no"), Misconfigured),
    ],
)
async def test_what_the_server_refuses(reply: Reply, kind: type[Exception]) -> None:
    """No other try would change it, the breaker stays closed, and no client sees its words."""
    breaker = CircuitBreaker("it", failure_threshold=1)
    async with odd(reply, breaker=breaker) as (behind, worker):
        with pytest.raises(kind) as caught:
            await write(worker)
        assert type(caught.value) is kind
        assert len(behind.bodies) == 1
        assert not breaker.is_open
        assert "\n" not in str(caught.value)
        assert not any(word in http_error(caught.value).message for word in ("sk-123", "10.0.0.7"))


async def test_hanging_up_closes_the_connection() -> None:
    async def slowly(reader: Any, writer: asyncio.StreamWriter, _: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"content-length: 99999\r\n\r\n" + chunk(IDS[:1]).encode())
        await hangs(reader)

    async with odd(slowly) as (behind, worker):
        stream = worker.generate(QUESTION, StopCriteria(50), Sampling())
        assert isinstance(await anext(stream), Delta)
        await stream.aclose()
        await until(lambda: behind.gone == 1)
        task = asyncio.create_task(write(worker))
        await until(lambda: len(behind.bodies) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: behind.gone == 2)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_breaker_opens_and_closes() -> None:
    now = 0.0
    breaker = CircuitBreaker("it", failure_threshold=3, reset_timeout_s=5.0, clock=lambda: now)
    replies = [refusal(500, "x")] * 4 + [well]
    async with odd(*replies, retries=0, breaker=breaker) as (behind, worker):
        for _ in range(3):
            with pytest.raises(WorkerUnavailable, match="500"):
                await write(worker)
        assert breaker.is_open
        with pytest.raises(WorkerUnavailable, match="3 times in a row"):
            await write(worker)
        assert len(behind.bodies) == 3  # it was left alone
        now = 5.0
        with pytest.raises(WorkerUnavailable, match="500"):
            await write(worker)
        with pytest.raises(WorkerUnavailable, match="in a row"):
            await write(worker)  # one try each time
        now = 10.0
        assert whole(await write(worker)).segment.text == TEXT
        assert not breaker.is_open
        assert whole(await write(worker)).segment.text == TEXT


async def test_a_list_of_models_does_not_close_the_breaker() -> None:
    """As of an engine that died: its server lists the models and writes nothing."""
    breaker = CircuitBreaker("it", failure_threshold=2)
    replies = [refusal(500, "x"), http(200, '{"data": []}')] * 2
    async with odd(*replies, retries=0, breaker=breaker) as (_, worker):
        for _ in range(2):
            with pytest.raises(WorkerUnavailable, match="500"):
                await write(worker)
            assert await worker.backend.trouble() is None
        assert breaker.is_open


async def test_a_probe_that_failed_is_made_again() -> None:
    async with odd(refusal(500, "starting"), retries=0) as (behind, worker):
        worker.backend._capabilities = None
        with pytest.raises(WorkerUnavailable):
            await write(worker)
        behind.replies = [http(200, '{"choices": [{"text": "x", "finish_reason": "length"}]}')]
        assert await worker.backend.capabilities() == ServerCapabilities(
            "ids", samples=False, extras=True
        )


@pytest.mark.parametrize(
    ("url", "name"),
    [
        *((bad, None) for bad in ("", "localhost:8000", "ftp://x", "http://", "http://u:p@x/v1")),
        ("http://x/v1?key=1", None),
        *((f"http://x:1{end}", "http://x:1/v1") for end in ("", "/", "/v1/")),
        ("http://x:1/openai/v1/", "http://x:1/openai/v1"),
    ],
)
def test_addresses(url: str, name: str | None) -> None:
    if name is not None:
        assert Server(url).name == name
        return
    with pytest.raises(ConfigError, match="url"):
        Server(url)


def stream(*choices: Any, usage: Any = None, **more: Any) -> Reply:
    """A stream whose chunks have these choices, one each."""
    datas = [{"choices": [choice], **more} for choice in choices]
    datas += [{"choices": [], "usage": usage}] if usage is not None else []
    return events(*(f"data: {json.dumps(data)}\n\n" for data in datas), "data: [DONE]\n\n")


def said(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish, **more}


def message(finish: str | None = "stop", **delta: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


TOKEN = json.loads(chunk(IDS[:1]).removeprefix("data: "))["choices"][0]


def scored(logprob: Any) -> dict[str, Any]:
    """A token whose log-probability is that."""
    name = f"token_id:{IDS[0]}"
    shown = {"tokens": [name], "token_logprobs": [logprob], "top_logprobs": [{name: logprob}]}
    return {**TOKEN, "logprobs": shown}


TEXT_ONLY, CHAT = ServerCapabilities("text"), ServerCapabilities("chat")
TOGETHER = {
    "tokens": [f"token_id:{IDS[0]}"],
    "token_logprobs": [-0.1],
    "top_logprobs": [{f"token_id:{i}": -0.1 for i in IDS[:3]}],
}
MODELS = [{"model": model, "choices": [said("a")]} for model in ("one", "other")]
ENDLESS = '{"choices": [], "usage": {"completion_tokens": 1e999}}'


def data(*events_: Any) -> Reply:
    """A stream of these events, as JSON or as they are."""
    return events(*(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events_))


WRONG: dict[str, tuple[ServerCapabilities | None, Reply]] = {
    "500": (None, refusal(500, "x")),
    "502": (None, refusal(502, "y")),
    "an end without a reason": (None, events(chunk(IDS[:3]), "data: [DONE]\n\n")),
    "an error in a stream": (None, events(chunk(IDS[:3]), 'data: {"error": {"code": 500}}\n\n')),
    "an error in words": (None, data('{"error": "gone"}')),
    "no JSON": (None, http(200, "<html>", "text/event-stream")),
    "not a stream": (None, http(200, "{}")),
    "garbage in a stream": (None, data("{garbage")),
    "a list": (None, data("[1]")),
    "no choices": (None, data('{"id": 1}')),
    "choices of nothing": (None, data('{"choices": [null]}')),
    "a strange id": (None, data('{"choices": [{"text": "a", "token_ids": ["x"]}]}')),
    "half a thing": (None, data('{"choices": [{"text": 3, "logprobs": {"content": [{}]}}]}')),
    "another model in mid-answer": (TEXT_ONLY, data(*MODELS)),
    "above 0": (None, stream(scored(0.7), said("", "stop"))),
    "NaN": (None, events(chunk(IDS).replace("-0.5", "NaN"), END)),
    "NaN in quotes": (None, stream(scored("nan"), said("", "stop"))),
    "a truth value": (None, stream(scored(True), said("", "stop"))),
    "more than 1 together": (None, stream({**TOKEN, "logprobs": TOGETHER}, said("", "stop"))),
    "an id that is half a number": (None, stream({**TOKEN, "token_ids": [IDS[0] + 0.5]})),
    "ids of another vocabulary": (None, stream({**TOKEN, "token_ids": IDS[3:4]})),
    "an id beyond the vocabulary": (None, stream({**TOKEN, "token_ids": [99999]})),
    "no text for an id that ends it": (
        None, stream({**TOKEN, "text": "Hello", "token_ids": [TOKENIZER.eos_id]}),
    ),
    "a refusal": (CHAT, stream(message(refusal="I can't."))),
    "a call": (CHAT, stream(message(tool_calls=[{"index": 0, "function": {"name": "x"}}]))),
    "a text that is a number": (TEXT_ONLY, stream(said("a"), {"index": 0, "text": 5})),
    "a reason that is a number": (TEXT_ONLY, stream(said("a"), {**said("b"), "finish_reason": 1})),
    "usage that is a list": (TEXT_ONLY, stream(said("a", "stop"), usage=[1, 2])),
    "usage in words": (TEXT_ONLY, stream(said("a", "stop"), usage={"prompt_tokens": "many"})),
    "usage beyond any": (TEXT_ONLY, stream(said("a", "stop"), usage={"prompt_tokens": 2**53})),
    "endless usage": (TEXT_ONLY, data({"choices": [said("a", "stop")]}, ENDLESS)),
    "two choices of one number": (TEXT_ONLY, data({"choices": [said("a"), said("b", "stop")]})),
    "another choice alone": (TEXT_ONLY, stream({**said("a", "stop"), "index": 1})),
    "deep": (TEXT_ONLY, data("[" * 100_000)),
    "deep at once": (TEXT_ONLY, http(200, '{"choices": ' + "[" * 100_000)),
    "a line without an end": (TEXT_ONLY, data("a" * (9 << 20))),
    "a body without an end": (TEXT_ONLY, http(200, "[" + "1," * (4 << 20))),
    "latin-1": (
        TEXT_ONLY, http(200, b'data: {"choices": [{"text": "\xe9"}]}\n\n', "text/event-stream"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
async def test_a_wrong_answer_is_an_error_that_names_the_server_or_is_asked_for_again(
    name: str,
) -> None:
    able, reply = WRONG[name]
    async with odd(reply, retries=0) as (behind, worker):
        worker.backend._capabilities = able or worker.backend._capabilities
        with pytest.raises(WorkerError) as caught:
            await write(worker)
        assert worker.backend.server.name in str(caught.value)
    for streamed in (True, False) if able is None else ():
        async with odd(reply, well) as (behind, worker):
            if isinstance(caught.value, WorkerUnavailable):
                assert whole(await write(worker, stream=streamed)).segment.text == TEXT
            else:  # it would come out the same again
                with pytest.raises(WorkerError):
                    await write(worker, stream=streamed)
            assert len(behind.bodies) == 1 + isinstance(caught.value, WorkerUnavailable)


async def test_a_cancellation_just_as_a_stream_ends_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(*_: Any) -> AsyncIterator[str]:
        yield "[DONE]"
        reading.cancel()

    async def read(remote: Server) -> None:
        assert [chunk async for chunk in remote.events("/completions", {})] == []
        await asyncio.sleep(60)

    monkeypatch.setattr(server, "events", ends)
    async with odd(data("[DONE]")) as (_, worker):
        reading = asyncio.create_task(read(worker.backend.server))
        await asyncio.wait({reading}, timeout=10)
        assert reading.cancelled()


@pytest.mark.parametrize("off", [-3, 2])
async def test_tokens_that_are_lost_or_come_twice_do_not_fit_the_usage(off: int) -> None:
    async with odd(well) as (behind, worker):
        length = well.start  # type: ignore[attr-defined]
        usage = {"prompt_tokens": length, "completion_tokens": len(IDS)}
        shown = [IDS[0]] * off + IDS[max(0, -off) :]
        parts = [json.loads(chunk([i]).removeprefix("data: "))["choices"][0] for i in shown]
        behind.replies = [stream(*parts, said("", "stop"), usage=usage)]
        with pytest.raises(
            Contradiction, match=f"{worker.backend.server.name}: expected the {len(IDS)}"
        ):
            await write(worker)
        worker.backend._capabilities = TEXT_ONLY
        usage["completion_tokens"] = 40
        behind.replies = [stream(said("", "stop"), usage=usage)]
        with pytest.raises(Contradiction, match="expected the 40 tokens"):
            await write(worker)


@pytest.mark.parametrize("lost", [0, LLAMA_CPP.left_out, LLAMA_CPP.left_out + 1])
async def test_the_token_that_ends_a_text_is_counted_and_not_sent(lost: int) -> None:
    """llama.cpp's last chunk comes after the one in which the worker found a stop string."""
    numbered = ServerCapabilities("ids", LLAMA_CPP, top=20)

    def token(i: int) -> dict[str, Any]:
        one = {"id": i, "logprob": -0.5, "bytes": list(TOKENIZER.pieces[i])}
        item = {**one, "token": "", "top_logprobs": [{**one, "token": ""}]}
        return said(TOKENIZER.decode([i]), logprobs={"content": [item]})

    ids, call = (
        TOKENIZER.encode("14 ="),
        replace(QUESTION, transcript=replace(QUESTION.transcript, closed=True)),
    )
    criteria = StopCriteria(50, stop=(" =",))  # which an answer may begin with, so it is not sent
    async with odd(well) as (behind, worker):
        worker.backend._capabilities = numbered
        length = len(worker.prompts.transcript(call.transcript))
        usage = {"prompt_tokens": length, "completion_tokens": len(ids) + 1 + lost}
        behind.replies = [stream(*map(token, ids), said("", "stop"), usage=usage)]
        items = worker.generate(call, criteria, Sampling())
        if lost > LLAMA_CPP.left_out:
            with pytest.raises(Contradiction, match="parts of its stream are lost"):
                _ = [item async for item in items]
            return
        generation = whole([item async for item in items])
        assert (generation.segment.text, generation.segment.finish) == ("14", "stop")


UTF8 = "é → 42, a\u2028b\x85c"
"""JSON may hold U+2028 and the like as they are; only \\n ends a line of a stream."""
SAID = "data: " + json.dumps({"choices": [said(UTF8, "stop")]}, ensure_ascii=False)
ONE, DONE, EVENTS = f"{SAID}\n\n", "data: [DONE]\n\n", "text/event-stream"
BESIDE = [{**said("no"), "index": 1}, said(UTF8), {**said("no", "stop"), "index": 1}]
PINGS = (
    "data:\n\n", "data: \n\n", "data\n\n", "data:\ndata:\n\n", ": ping\n\n", "retry: 3000\n\n",
    "event: ping\n\n", "id: 7\n\n",
)  # fmt: skip
ARRIVES: dict[str, Reply] = {
    **{
        f"{kind}, {mark!r}, {end!r}": http(200, mark + (ONE + DONE).replace("\n", end), kind)
        for kind in (EVENTS, f"{EVENTS}; charset=iso-8859-1")
        for mark in ("", "\ufeff")
        for end in ("\n", "\r\n", "\r")
    },
    **{repr(ping): events(ping, ONE, ping, DONE, ping.strip()) for ping in PINGS},
    **{
        f"encoding {coding}": http(200, ONE, EVENTS, f"content-encoding: {coding}")
        for coding in ("", "identity", "none", "utf-8", "UTF-8", "chunked")
    },
    "not streamed": http(200, "\ufeff" + SAID.removeprefix("data: ")),
    "choices beside the first": stream(*BESIDE, said("", "stop")),
}


@pytest.mark.parametrize("name", list(ARRIVES))
async def test_a_text_arrives_in_any_form_of_a_stream(name: str) -> None:
    async with odd(ARRIVES[name], retries=0) as (_, worker):
        worker.backend._capabilities = TEXT_ONLY
        assert whole(await write(worker)).segment.text == UTF8


@pytest.mark.parametrize(
    "coding", ["gzip", "x-gzip", "deflate", "BR", "zstd", "compress", "utf-8, gzip"]
)
async def test_what_is_compressed_is_refused_by_name(coding: str) -> None:
    reply = http(200, b"\x1f\x8b", "text/event-stream", f"content-encoding: {coding}")
    async with odd(reply, retries=0) as (_, worker):
        with pytest.raises(WorkerError, match=f"content-encoding '{coding.lower()}'"):
            await write(worker)


async def test_a_companys_own_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trusted where the setting or the environment names it, and by nobody else."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    theirs, other = str(tmp_path / "theirs.pem"), str(tmp_path / "other.pem")
    authority.cert_pem.write_to_path(theirs)
    trustme.CA().cert_pem.write_to_path(other)
    for ca in (None, other):
        async with odd(well, tls=tls, ca=ca, retries=0) as (_, worker):
            with pytest.raises(WorkerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await write(worker)
    async with odd(well, tls=tls, ca=theirs) as (_, worker):
        assert whole(await write(worker)).segment.text == TEXT
    monkeypatch.setenv("SSL_CERT_FILE", theirs)
    for ca in (None, other):
        async with odd(well, tls=tls, ca=ca) as (_, worker):
            assert whole(await write(worker)).segment.text == TEXT


def test_authorities_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no certificate")
    for name in (text, tmp_path / "missing.pem", tmp_path):
        with pytest.raises(ConfigError, match="ca: expected a file of certificates"):
            Server("https://x/v1", ca=str(name))
    monkeypatch.setenv("SSL_CERT_FILE", str(text))
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        Server("https://x/v1")
    Server("http://x/v1")
