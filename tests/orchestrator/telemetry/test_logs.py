"""Lines of the log: they say which request they are about, and nothing that was said in it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from orchestrator.http.auth import Access, Keys
from orchestrator.telemetry.logs import Fields, about
from tests.orchestrator.serving import HTTP, scripted, service, serving

SECRET, KEY, WRONG = "xyzzy", "sk-plugh", "sk-guessed"


class Kept(logging.Handler):
    """Every record with all that a structured log would write of it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.addFilter(Fields())
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {**record.__dict__, "message": record.getMessage()}
        if record.exc_info:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        self.records.append(fields)

    @property
    def text(self) -> str:
        return json.dumps(self.records, default=repr)


@pytest.fixture
def log() -> Iterator[Kept]:
    kept, loggers = Kept(), [logging.getLogger(name) for name in ("orchestrator", "workers")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(kept)
        logger.setLevel(logging.DEBUG)
    yield kept
    for logger, level in zip(loggers, before, strict=True):
        logger.removeHandler(kept)
        logger.setLevel(level)


async def test_fields_reach_the_tasks_that_begin_inside_and_end_with_the_block(log: Kept) -> None:
    line = logging.getLogger("orchestrator.here").info

    async def later() -> None:
        await asyncio.sleep(0)
        line("task")

    with about(request_id="one"):
        task = asyncio.create_task(later())
        with about(trace_id="two"):
            line("inner")
        line("own", extra={"request_id": "mine"})
    line("after")
    await task
    found = {
        record["message"]: (record.get("request_id"), record.get("trace_id"))
        for record in log.records
    }
    assert found == {
        "inner": ("one", "two"),
        "own": ("mine", None),
        "after": (None, None),
        "task": ("one", None),
    }


def post(url: str, key: str, *, model: str = "specreason", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": f"{SECRET}?"}], **more}
    headers = {"Authorization": f"Bearer {key}", "x-request-id": "asked-by-me"}
    return HTTP.post(f"{url}/v1/chat/completions", json=body, headers=headers)


def test_a_line_for_every_request_with_its_id(log: Kept) -> None:
    with serving(service(access=Access(Keys({KEY})))) as url:
        assert post(url, KEY).status_code == 200
    (line,) = [record for record in log.records if record["name"] == "orchestrator.http.middleware"]
    about = {"request_id": "asked-by-me", "method": "POST", "path": "/v1/chat/completions"}
    assert line.items() >= (about | {"status": 200}).items()
    assert line["ms"] > 0


def test_no_prompt_no_answer_and_no_key_whatever_goes_wrong(log: Kept) -> None:
    bug = ValueError(f"cannot encode {SECRET!r}")
    large = scripted(failures={0: bug, 1: bug})
    asked: list[dict[str, Any]] = [
        {"model": "small-only"},
        {"model": "large-only"},
        {"model": "large-only", "stream": True},
        {"temperature": -1},
        {"policy": {SECRET: 1}},
    ]
    with serving(service(access=Access(Keys({KEY})), large=large)) as url:
        statuses = {post(url, KEY, **one).status_code for one in asked}
        statuses.add(post(url, WRONG).status_code)
        HTTP.get(f"{url}/v1/models", params={"q": SECRET})
    assert statuses >= {200, 400, 401}
    assert len([one for one in log.records if one["name"] == "orchestrator.http.middleware"]) >= 7
    assert "ValueError" in log.text  # it is logged, by its kind and place
    for word in (SECRET, KEY, WRONG, "twice that is 8"):
        assert word not in log.text
