"""A service whose large model vLLM runs: policies, a dead engine, and what Ctrl-C leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from deploy.evaluation.builtin.problems import draw
from policies import POLICIES
from tests.deploy.conftest import ROOT, Served, alive, free_port, running

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: make test-vllm", allow_module_level=True)

pytestmark = [pytest.mark.vllm, pytest.mark.serve, pytest.mark.timeout(600)]

PROBLEMS = draw("heldout", 5, 20)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "local.yaml").read_text())
    data["http_options"]["port"] = free_port()
    workers = data["applications"][0]["args"]["workers"]
    workers["large"] = {
        "model": "embedded:large",
        "engine": "vllm",
        "device": "cpu",
        "rows": 8,
        "max_len": 1024,
        "threads": 1,
        "patience_s": 240,
        "engine_args": {"seed": 0},
        "speculation": {
            "method": "ngram",
            "params": {"num_speculative_tokens": 3, "prompt_lookup_max": 3},
        },
    }
    file = tmp_path_factory.mktemp("vllm") / "vllm.yaml"
    file.write_text(yaml.safe_dump(data))
    with running(file) as service:
        yield service


async def answer(service: Served, question: str, model: str, **more: Any) -> tuple[str, str, Any]:
    """Thought, answer and the last chunk of a stream."""
    chunks = await service.client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        timeout=300,
        **more,
    )
    thought, text, last = "", "", None
    async for chunk in chunks:
        last = chunk
        if chunk.choices:
            thought += getattr(chunk.choices[0].delta, "reasoning", None) or ""
            text += chunk.choices[0].delta.content or ""
    return thought, text, last


@pytest.mark.parametrize("policy", list(POLICIES))
async def test_every_policy_answers(service: Served, policy: str) -> None:
    _, text, last = await answer(service, PROBLEMS[0].question, policy)
    assert text.strip()
    assert last.choices[0].finish_reason == "stop"


async def test_drafts_of_vllm_are_counted_under_our_names(service: Served) -> None:
    for problem in PROBLEMS:
        await answer(service, problem.question, "large-only")
    assert service.metric("baton_worker_generated_tokens_total", "large") > 0
    accepted = service.metric("baton_worker_accepted_tokens_total", "large")
    assert service.metric("baton_worker_drafted_tokens_total", "large") >= accepted > 0
    rounds = service.metric("baton_worker_rounds_total", "large")
    assert service.metric("baton_worker_emitted_tokens_total", "large") > rounds > 0


async def test_a_killed_engine_costs_no_answer(service: Served) -> None:
    questions = [problem.question for problem in PROBLEMS]
    before = [await answer(service, question, "large-only") for question in questions]

    async def kill() -> None:
        await asyncio.sleep(0.3)
        engines = [p for p, line in service.processes().items() if "VLLM::EngineCore" in line]
        assert len(engines) == 1
        os.kill(engines[0], signal.SIGKILL)

    *after, _ = await asyncio.gather(
        *(answer(service, question, "large-only") for question in questions), kill()
    )
    assert [one[:2] for one in after] == [one[:2] for one in before]


async def test_ctrl_c_leaves_no_process(service: Served) -> None:
    for _ in range(300):  # the engine that was killed above comes back
        processes = service.processes()
        if any("VLLM::EngineCore" in line for line in processes.values()):
            break
        await asyncio.sleep(0.2)
    else:
        raise AssertionError("there is no engine")
    service.interrupt(seconds=60)
    for _ in range(100):
        if not alive(processes):
            break
        await asyncio.sleep(0.2)
    assert alive(processes) == {}
