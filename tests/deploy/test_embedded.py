"""`baton serve` as shipped: the embedded pair answers, whatever clients and replicas do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.config import DEFAULT_FILE
from policies import POLICIES
from tests.deploy.conftest import Served, free_port, running
from tests.deploy.test_serving import until
from workers.models.problems import draw

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
class Heard:
    """What one client heard of one stream."""

    thought: str = ""
    content: str = ""
    finish: str | None = None
    baton: dict[str, Any] = field(default_factory=dict)
    first_s: float = 0.0  # seconds to the first text
    total_s: float = 0.0


async def listen(served: Served, question: str, model: str = "specreason", **more: Any) -> Heard:
    heard, begun = Heard(), time.perf_counter()
    chunks = await served.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True, **more
    )
    async for chunk in chunks:
        choice = chunk.choices[0]
        reasoning = getattr(choice.delta, "reasoning", None) or ""
        if (reasoning or choice.delta.content) and not heard.first_s:
            heard.first_s = time.perf_counter() - begun
        heard.thought += reasoning
        heard.content += choice.delta.content or ""
        if choice.finish_reason:
            assert heard.finish is None, "a stream ends once"
            heard.finish = choice.finish_reason
            heard.baton = (chunk.model_extra or {})["baton"]
    heard.total_s = time.perf_counter() - begun
    return heard


def test_most_answers_are_right(shipped: Served) -> None:
    async def answers() -> list[Heard]:
        return [await listen(shipped, problem.question) for problem in PROBLEMS[:20]]

    heard = asyncio.run(answers())
    right = [
        f"{{{problem.answer}}}" in one.content
        for problem, one in zip(PROBLEMS, heard, strict=False)
    ]
    assert sum(right) >= 14
    steps = [step for one in heard for step in one.baton["steps"]]
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
        heard = await listen(shipped, "What is 37*6+12?", model=model)
    assert heard.finish == "stop"
    assert "boxed" in heard.content


async def test_large_only_streams_as_it_writes(shipped: Served) -> None:
    heard = await listen(shipped, "What is 37*46+12?", "large-only")
    assert len(heard.thought) > 20
    assert heard.first_s < 0.5 * heard.total_s


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


async def test_a_hundred_hang_ups_leave_nothing_running(shipped: Served) -> None:
    """Clients go while queued, while the small one drafts, while judged, while it streams."""
    streams = []
    for number in range(100):
        question = f"{number + 10} + {number + 11} + 25 + 31 + 46 + 57"
        phase = (0.0, 0.05, 0.15, 0.4)[number % 4]
        streams.append(asyncio.create_task(_leave(shipped, question, phase)))
    await asyncio.gather(*streams)
    for worker in ("small", "large"):
        rows = lambda name=worker: shipped.metric("baton_worker_live_rows", name)  # noqa: E731
        queued = lambda name=worker: shipped.metric("baton_worker_queued", name)  # noqa: E731
        await until(lambda rows=rows, queued=queued: rows() == queued() == 0, 5)
    assert (await listen(shipped, "What is 2+3?")).finish == "stop"


async def _leave(served: Served, question: str, after_s: float) -> None:
    """Ask, and hang up after a while whatever has been heard."""
    try:
        async with asyncio.timeout(0.02 + after_s):
            await listen(served, question, temperature=1.0)
    except TimeoutError:
        pass
    except Exception as error:
        assert "429" in str(error), error  # noqa: PT017 (one of many clients)
