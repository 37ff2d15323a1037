"""The attacks find what is weak, and a service that holds passes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from deploy.cli.torture import SHORT, _is_loopback
from deploy.evaluation.torture import (
    SCENARIOS,
    AttackedService,
    ScenarioOutcome,
    hostile_request,
    table,
    torture,
)
from orchestrator.errors import ContextLengthExceeded
from orchestrator.http.limits import ServiceLimits
from tests.deploy.cli.test_main import baton  # noqa: F401 a fixture
from tests.deploy.service.test_proxy import serving as behind_the_proxy
from tests.orchestrator.serving import scripted, service, serving
from workers.scripted import Scripted

FEW = {"hostile": 60, "large": 2, "overload": 24}


async def attacked(url: str, **scenarios: int) -> dict[str, ScenarioOutcome]:
    return {one.scenario: one async for one in torture(AttackedService(url), scenarios)}


class Bounded(Scripted):
    """Refuses what is too long, as real workers do."""

    async def generate(self, call: Any, *args: Any, **more: Any) -> Any:
        if len(call.transcript.messages[0].content) > 10_000:
            raise ContextLengthExceeded("too long", param="messages")
        async for item in super().generate(call, *args, **more):
            yield item


async def test_a_service_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    story = scripted().story
    made = service(
        Bounded(story=story, delay=0.001),
        Bounded(story=story, delay=0.001),
        limits=ServiceLimits(concurrent=6, wait_s=0.05),
    )
    with serving(made) as url:
        found = await attacked(url, **FEW)
    for outcome in found.values():
        assert outcome.broken == [], outcome
    assert found["hostile"].requests == 60
    assert found["overload"].seen["200"] >= 6
    assert found["large"].seen["400"] == 2
    assert "| hostile | 60 |" in table(list(found.values()))


def answers(**given: Any) -> Callable[..., Any]:
    """A service with one answer for every chat, and one for everything else."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        chat = scope["path"] == "/v1/chat/completions"
        made = given["chat"]() if chat and "chat" in given else JSONResponse({"status": "ok"})
        await made(scope, receive, send)

    return app


def _answer(text: str) -> JSONResponse:
    message = {"role": "assistant", "content": text}
    return JSONResponse({"choices": [{"message": message}], "baton": {"degraded": []}})


async def test_what_does_not_hold_is_told() -> None:
    with behind_the_proxy(answers(chat=lambda: PlainTextResponse("oops", 200))) as url:
        found = await attacked(url, overload=1)
    assert "no answer of Baton's" in found["overload"].broken[0]
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        found = await attacked(url, overload=5, large=2)
    assert "another answer" in found["overload"].broken[0]
    assert any("megabyte" in one for one in found["large"].broken)
    crash = JSONResponse({"error": {"message": "x"}}, 500)
    with behind_the_proxy(answers(chat=lambda: crash)) as url:
        found = await attacked(url, hostile=40)
    assert any(one.startswith("500 to") for one in found["hostile"].broken)
    assert any("afterwards a user gets 500" in one for one in found["hostile"].broken)


def test_attacks_are_repeatable_and_of_every_kind() -> None:
    chance, again = random.Random(1), random.Random(1)
    made = [hostile_request(chance) for _ in range(300)]
    assert made == [hostile_request(again) for _ in range(300)]
    assert any(max(one) > 127 for one in made)
    assert len({one.split(b" ")[0] for one in made}) > 4
    assert SHORT.keys() == SCENARIOS.keys()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "one of them"),
        (("http://127.0.0.1:1", "--own"), "one of them"),
        (("http://10.0.0.7:8000",), "not on this machine"),
        (("http://127.0.0.1:1", "--scenarios", "faults"), "faults want --own"),
        (("http://127.0.0.1:1", "--scenarios", "nonesuch"), "is none of"),
    ],
)
def test_what_is_refused(baton: Any, arguments: tuple[str, ...], told: str) -> None:  # noqa: F811
    ran = baton("torture", *arguments)
    assert ran.status == 2
    assert told in ran.err


def test_the_command_says_whether_a_service_held(baton: Any, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "out.json"
    options = ("--short", "--scenarios", "overload", "--json", str(out))
    with serving(service(limits=ServiceLimits(concurrent=200))) as url:
        ran = baton("torture", url, *options)
    assert (ran.status, ran.err) == (0, "")
    assert "| overload | 100 |" in ran.out
    (row,) = json.loads(out.read_text())["rows"]
    assert row["held"] is True
    assert row["seen"]["200"] == 100
    assert _is_loopback("http://[::1]:8000")
    assert not _is_loopback("http://localhost.example")
