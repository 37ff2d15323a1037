"""Ways in which an answer goes wrong between a server and us, and a proxy that makes it so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

Events = list[Any]
"""The data of a stream's events: JSON as it is, or bytes that stand for no JSON."""
DONE = b"[DONE]"
K = 3
"""The event of a stream that something happens to: some have come, some are to come."""


class Cut(Exception):
    """The connection is lost here."""


def _choices(events: Events) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in events if isinstance(event, dict) and event["choices"]]


def _each(
    change: Callable[[dict[str, Any]], Any], start: int = K, end: int | None = None
) -> Callable[[Events], Events]:
    """The events with the choices of some of them changed; of a whole answer, all."""

    def changed(events: Events) -> Events:
        choices = _choices(events)
        for choice in choices[start if len(choices) > 1 else 0 : end]:
            change(choice)
        return events

    return changed


def _drop_ids(choice: dict[str, Any]) -> None:
    choice.pop("token_ids", None)
    choice["logprobs"] = None


def _set_text(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        if "text" in choice:
            choice["text"] = value
        else:
            choice.setdefault("delta", choice.get("message", {}))["content"] = value

    return change


def _logprobs(value: Any) -> Callable[[dict[str, Any]], None]:
    """Every log-probability is that."""

    def change(choice: dict[str, Any]) -> None:
        shown = choice.get("logprobs") or {}
        for item in shown.get("content") or ():
            item["logprob"] = value
            for top in item["top_logprobs"]:
                top["logprob"] = value
        if "token_logprobs" in shown:
            shown["token_logprobs"] = [value for _ in shown["token_logprobs"]]
            tops = shown["top_logprobs"]
            shown["top_logprobs"] = [top and dict.fromkeys(top, value) for top in tops]
        for position in choice.get("prompt_logprobs") or ():
            for top in (position or {}).values():
                top["logprob"] = value

    return change


def _ids(turn: Callable[[int], Any]) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        if choice.get("token_ids"):
            choice["token_ids"] = [turn(i) for i in choice["token_ids"]]
        for item in (choice.get("logprobs") or {}).get("content") or ():
            if "id" in item:
                item["id"] = turn(item["id"])

    return change


def _message(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        for part in ("delta", "message"):
            if part in choice:
                choice[part] = {"role": "assistant", "content": None, **fields}
                choice["finish_reason"] = "stop"

    return change


def _usage(turn: Callable[[dict[str, Any]], Any]) -> Callable[[Events], Events]:
    def changed(events: Events) -> Events:
        for event in events:
            if isinstance(event, dict) and event.get("usage"):
                event["usage"] = turn(event["usage"])
        return events

    return changed


def _insert(event: Any, at: int = K) -> Callable[[Events], Events]:
    return lambda events: [*events[:at], event, *events[at:]] if len(events) > 1 else events


def _only_streams(change: Callable[[Events], Events]) -> Callable[[Events], Events]:
    return lambda events: change(events) if len(_choices(events)) > 1 else events


def _models(events: Events) -> Events:
    for place, event in enumerate(events):
        if isinstance(event, dict):
            event["model"] = "one" if place < K else "other"
    return events


def _another_choice(events: Events) -> Events:
    for event in events:
        if isinstance(event, dict) and event["choices"]:
            other = deepcopy(event["choices"][0]) | {"index": 1, "finish_reason": None}
            event["choices"].insert(0, other)
            _set_text("no ")(event["choices"][0])
    return events


def _twice(events: Events) -> Events:
    for event in events:
        if isinstance(event, dict) and event["choices"]:
            event["choices"] *= 2
    return events


CORRUPTIONS: dict[str, Callable[[Events], Events]] = {
    "nothing": lambda events: events,
    "ids are dropped": _each(_drop_ids),
    "ids are dropped at one token": _each(_drop_ids, K, K + 1),
    "log-probabilities are dropped": _each(lambda choice: choice.update(logprobs=None)),
    "ids are dropped in streams": _only_streams(_each(_drop_ids)),
    "log-probabilities are dropped in streams": _only_streams(
        _each(lambda choice: choice.update(logprobs=None))
    ),
    "log-probabilities are null": _each(_logprobs(None)),
    "log-probabilities are NaN": _each(_logprobs(float("nan"))),
    "log-probabilities are texts": _each(_logprobs("-0.5")),
    "log-probabilities are above 0": _each(_logprobs(0.5)),
    "log-probabilities are nearly 0": _each(_logprobs(-0.01)),
    "log-probabilities are endless": _each(_logprobs(float("inf"))),
    "ids are texts": _each(_ids(str)),
    "ids are fractions": _each(_ids(lambda i: i + 0.5)),
    "ids are null": _each(_ids(lambda i: None)),
    "ids are another vocabulary's": _each(_ids(lambda i: i + 1), 0),
    "ids are another vocabulary's later": _each(_ids(lambda i: i + 1)),
    "ids are beyond the vocabulary": _each(_ids(lambda i: i + 100_000)),
    "ids are below 0": _each(_ids(lambda i: -1 - i)),
    "a text is a number": _each(_set_text(42), K, K + 1),
    "a text is a list": _each(_set_text(["a"]), K, K + 1),
    "texts are null": _each(_set_text(None), 0),
    "choices are null": _each(lambda choice: choice.clear()),
    "a choice is a text": lambda events: [
        {**event, "choices": ["a"]} if isinstance(event, dict) else event for event in events
    ],
    "choices are no list": lambda events: [
        {**event, "choices": 1} if isinstance(event, dict) else event for event in events
    ],
    "another choice beside it": _another_choice,
    "choices twice": _twice,
    "another model": _models,
    "finish_reason is a number": _each(lambda choice: choice.update(finish_reason=7), K, K + 1),
    "finish_reason is unknown": _each(lambda choice: choice.update(finish_reason="abort"), K),
    "an end in the middle": _only_streams(
        _each(lambda choice: choice.update(finish_reason="stop"), K, K + 1)
    ),
    "no end": _each(lambda choice: choice.update(finish_reason=None), 0),
    "a refusal": _each(_message(refusal="I can't help with that.")),
    "calls": _each(_message(tool_calls=[{"index": 0, "type": "function", "function": {}}])),
    "no [DONE]": lambda events: [event for event in events if event != DONE],
    "[DONE] in the middle": _insert(DONE),
    "an error in the middle": _insert({"error": {"message": "see 10.0.0.7", "code": 500}}),
    "an error in words": _insert({"error": "out of memory"}),
    "half an event": _insert(b'{"choices": [{"text": "a'),
    "a list": _insert([1, 2]),
    "deep JSON": _insert(b"[" * 100_000),
    "no UTF-8": _insert(b'{"choices": [{"text": "\xff\xfe"}]}'),
    "an empty chunk": _insert({"choices": []}),
    "one chunk lost": _only_streams(lambda events: [*events[:K], *events[K + 1 :]]),
    "every other chunk lost": _only_streams(lambda events: [*events[:-3:2], *events[-3:]]),
    "one chunk twice": _only_streams(lambda events: [*events[: K + 1], *events[K:]]),
    "no usage": _usage(lambda usage: None),
    "usage is a list": _usage(lambda usage: [usage]),
    "usage in words": _usage(lambda usage: dict.fromkeys(usage, "many")),
    "usage is null": _usage(lambda usage: dict.fromkeys(usage)),
    "usage is below 0": _usage(lambda usage: {**usage, "completion_tokens": -5}),
    "usage is far more": _usage(
        lambda usage: {**usage, "completion_tokens": usage["completion_tokens"] + 500}
    ),
    "no text at all": lambda events: [
        event for event in events if not isinstance(event, dict) or not event["choices"]
    ],
    "nothing at all": lambda events: [],
}
"""What becomes of the events of a stream (one, of an answer that is not streamed)."""
SHAPES = (
    "BOM", "charset", "lone CR", "comments", "HTML", "gzip", "cut", "half", "redirect", "400",
    "429", "500", "error with 200",
)  # fmt: skip
"""What becomes of a response as a whole."""
LOST = {"one chunk lost", "one chunk twice"}
UNSEEN_IN_TEXT = LOST
"""What nothing shows where a server sends text alone: encoded again, a text may have a few tokens
more or fewer than its server counts."""
UNSEEN_ONCE = {"text": LOST | {"every other chunk lost"}, "llama.cpp": LOST}
"""What nothing shows if it happens to one short text; llama.cpp's is not counted where a thought
ends, since the worker hangs up there."""


class Corrupting:
    """A proxy before the server at `url`, which changes one of `every` so many answers; none while
    `how` is None."""

    def __init__(self, url: str, how: str | None = None) -> None:
        self.url, self.how = url.removesuffix("/v1"), how
        self.every, self._answers = 1, 0
        self.app = Starlette(
            routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])],
        )

    async def answer(self, request: Request) -> Response:
        path, body = request.url.path, await request.body()
        async with httpx.AsyncClient(timeout=60.0, trust_env=False, verify=False) as client:
            kind = {"content-type": request.headers.get("content-type", "")}  # vLLM reads no other
            reply = await client.request(
                request.method, self.url + path, content=body, headers=kind
            )
        self._answers += request.method != "GET"
        left = self.how is None or self._answers % self.every
        if left or reply.status_code != 200 or request.method == "GET":
            kept = {"content-type": reply.headers["content-type"]}
            return Response(reply.content, reply.status_code, kept)
        if "event-stream" not in reply.headers["content-type"]:
            if path == "/generate":  # SGLang's own
                return Response(reply.content, media_type="application/json")
            (event,) = self._changed([reply.json()]) or [b""]
            return self._shaped(event if isinstance(event, bytes) else dumped(event), "json")
        datas = [data.removeprefix("data: ") for data in reply.text.split("\n\n") if data]
        events = [DONE if data == "[DONE]" else json.loads(data) for data in datas]
        lines = [
            b"data: " + (e if isinstance(e, bytes) else dumped(e)) for e in self._changed(events)
        ]
        return self._shaped(b"".join(line + b"\n\n" for line in lines), "event-stream")

    def _changed(self, events: Events) -> Events:
        return CORRUPTIONS.get(self.how or "", CORRUPTIONS["nothing"])(events)

    def _shaped(self, body: bytes, kind: str) -> Response:
        kinds = {"json": "application/json", "event-stream": "text/event-stream"}
        status, headers = 200, {"content-type": kinds[kind]}
        words = b'{"error": {"message": "ask ops@10.0.0.7, key sk-1", "code": 400}}'
        if self.how == "BOM":
            body = b"\xef\xbb\xbf" + body
        elif self.how == "charset":
            headers["content-type"] += "; charset=utf-16"
        elif self.how == "lone CR" and kind == "event-stream":
            body = body.replace(b"\n", b"\r")
        elif self.how == "comments" and kind == "event-stream":
            body = b": hi\n\nretry: 5\n\nid: 3\n\n" + body.replace(b"data:", b"event: x\ndata:")
        elif self.how == "HTML":
            body, headers = b"<html>Welcome</html>", {"content-type": "text/html"}
        elif self.how == "gzip":
            headers["content-encoding"] = "gzip"
        elif self.how in ("cut", "half"):
            return StreamingResponse(self._half(body), headers=headers)
        elif self.how == "redirect":
            status, headers = 307, {"location": "/v1/elsewhere"}
        elif self.how in ("400", "429", "500"):
            status, body = int(self.how), words
        elif self.how == "error with 200":
            body, headers = words, {"content-type": "application/json"}
        return Response(body, status, headers)

    async def _half(self, body: bytes) -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        if self.how == "cut":
            raise Cut


def dumped(event: Any) -> bytes:
    return json.dumps(event).encode()
