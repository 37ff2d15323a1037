"""`baton serve` as shipped: the embedded pair answers, whatever clients and replicas do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.evaluation.builtin.problems import draw
from deploy.launch.deployment_file import DEFAULT_FILE
from policies import POLICIES
from tests.deploy.conftest import Served, free_port, running
from tests.deploy.service.test_serving import until

pytestmark = [pytest.mark.serve, pytest.mark.timeout(400)]

PROBLEMS = draw("dev", 5, 50)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """deploy/local.yaml on a port of its own."""
    data: dict[str, Any] = yaml.safe_load(DEFAULT_FILE.read_text())
    data["http_options"]["port"] = free_port()
    file: Path = tmp_path_factory.mktemp("shipped") / "local.yaml"
    file.write_text(yaml.safe_dump(data))
    with running(file) as service:
        yield service


@dataclass(slots=True)
class Received:
    """What one client received of one stream."""

    thought: str = ""
    content: str = ""
    finish: str | None = None
    baton: dict[str, Any] = field(default_factory=dict)


async def listen(served: Served, question: str, model: str = "specreason", **more: Any) -> Received:
    received = Received()
    chunks = await served.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True, **more
    )
    async for chunk in chunks:
        choice = chunk.choices[0]
        received.thought += getattr(choice.delta, "reasoning_content", None) or ""
        received.content += choice.delta.content or ""
        if choice.finish_reason:
            assert received.finish is None, "a stream ends once"
            received.finish = choice.finish_reason
            received.baton = (chunk.model_extra or {})["baton"]
    return received


def test_most_answers_are_right(shipped: Served) -> None:
    async def answers() -> list[Received]:
        return [await listen(shipped, problem.question) for problem in PROBLEMS[:20]]

    received = asyncio.run(answers())
    right = [
        f"{{{problem.answer}}}" in one.content
        for problem, one in zip(PROBLEMS, received, strict=False)
    ]
    assert sum(right) >= 14
    steps = [step for one in received for step in one.baton["steps"]]
    assert {step["author"] for step in steps} == {"small", "large"}
    assert all(step["score"] is not None for step in steps if step["author"] == "small")


async def test_fifty_streams_at_once_say_what_one_at_a_time_says(shipped: Served) -> None:
    alone = [await listen(shipped, problem.question) for problem in PROBLEMS]
    together = await asyncio.gather(*(listen(shipped, p.question) for p in PROBLEMS))
    for one, other in zip(alone, together, strict=True):
        assert other.finish == one.finish == "stop"
        assert (other.thought, other.content) == (one.thought, one.content)


@pytest.mark.parametrize("model", list(POLICIES))
async def test_every_policy_is_served(shipped: Served, model: str) -> None:
    """With the file's parameters, those with several calls at once among them."""
    async with asyncio.timeout(60):
        received = await listen(shipped, "What is 37*6+12?", model=model)
    assert received.finish == "stop"
    assert "boxed" in received.content


async def test_the_only_large_replica_dies_under_twenty_streams(shipped: Served) -> None:
    asked = [problem.question for problem in PROBLEMS[:20]]
    undisturbed = await asyncio.gather(*(listen(shipped, question) for question in asked))
    streams = [asyncio.create_task(listen(shipped, question)) for question in asked]
    await until(lambda: shipped.metric("baton_worker_live_rows", "large") > 0, 20)
    shipped.kill("LargeWorker")
    for before, after in zip(undisturbed, await asyncio.gather(*streams), strict=True):
        assert (after.thought, after.content) == (before.thought, before.content)
        assert after.finish == "stop"
    await until(lambda: len(shipped.replicas("LargeWorker")) == 1, 60)
