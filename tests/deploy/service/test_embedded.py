"""`baton serve` as shipped: the embedded pair answers, until its node dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.evaluation.builtin.problems import draw
from deploy.launch.deployment_file import DEFAULT_FILE
from policies import POLICIES
from tests.deploy.conftest import WAIT_S, Served, alive, free_port, running

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]

PROBLEMS = draw("dev", 5, 8)


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


async def listen(served: Served, question: str, model: str = "specreason") -> Received:
    received = Received()
    chunks = await served.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True
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


async def test_most_answers_are_right(shipped: Served) -> None:
    answers = await asyncio.gather(*(listen(shipped, problem.question) for problem in PROBLEMS))
    right = [
        f"{{{problem.answer}}}" in one.content
        for problem, one in zip(PROBLEMS, answers, strict=True)
    ]
    assert sum(right) >= 5
    steps = [step for one in answers for step in one.baton["steps"]]
    assert {step["author"] for step in steps} == {"small", "large"}
    assert all(step["score"] is not None for step in steps if step["author"] == "small")


@pytest.mark.parametrize("model", list(POLICIES))
async def test_every_policy_is_served(shipped: Served, model: str) -> None:
    """With the file's parameters, those with several calls at once among them."""
    received = await listen(shipped, "What is 37*6+12?", model=model)
    assert received.finish == "stop"
    assert "boxed" in received.content


def test_the_consoles_samples_show_a_rejected_draft_and_a_takeover(shipped: Served) -> None:
    """The first has a wrong draft, which the large model writes in other words."""
    text = Path("orchestrator/http/console/questions.js").read_text()
    questions = re.findall(r'^  "(.*)",$', text, re.MULTILINE)

    async def answers() -> list[Received]:
        return [await listen(shipped, question, "baton") for question in questions]

    rewritten, kept, taken, corrected = asyncio.run(answers())
    shown = [
        ("".join(step["author"][0] for step in one.baton["steps"] if step["accepted"]), one)
        for one in (rewritten, kept, taken, corrected)
    ]
    for (authors, one), answer in zip(shown, ("177", "77", "1714", "1051"), strict=True):
        assert f"boxed{{{answer}}}" in one.content
        assert ("l" in authors) == (one is not kept)
        assert all(step["accepted"] for step in one.baton["steps"]) == (one is kept)
    steps = rewritten.baton["steps"]
    first = next(at for at, step in enumerate(steps) if not step["accepted"])
    assert steps[first]["text"] not in rewritten.thought
    assert taken.baton["metrics"]["large_tokens"] > taken.baton["metrics"]["small_tokens"] / 4
    assert corrected.baton["metrics"]["large_tokens"] < 10


async def test_a_dead_node_ends_the_command_by_status_1(shipped: Served) -> None:
    """The last test of this service."""
    started = shipped.processes()
    (raylet,) = [pid for pid, line in started.items() if "raylet/raylet" in line]
    os.kill(raylet, signal.SIGKILL)
    _, err = await asyncio.to_thread(shipped.process.communicate, timeout=WAIT_S)
    assert shipped.process.returncode == 1
    assert "Ray's node has died" in err
    assert alive(started) == {}
