"""The pair over vLLM in Ray Serve's replicas: every policy answers a question."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from deploy.lab.fetch import LINKS
from policies import POLICIES
from tests.deploy.conftest import ROOT, Served, free_port, running
from tests.real.test_policies import ask, check

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: run it by the Python of .venv-vllm", allow_module_level=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = ROOT / "deploy" / "evaluation" / "real_pair.yaml"
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    data["http_options"]["port"] = free_port()
    for name in ("small", "large"):
        data["applications"][0]["args"]["workers"][name] = {
            "model": str(LINKS / name),
            "engine": "vllm",
            "device": "cpu",
            "dtype": "bfloat16",
            "rows": 2,
            "max_len": 2048,
            "patience_s": 500,
        }
    changed: Path = tmp_path_factory.mktemp("real") / "vllm.yaml"
    changed.write_text(yaml.safe_dump(data))
    with running(changed) as served:
        yield served


@pytest.fixture(scope="module")
def api(service: Served) -> OpenAI:
    return OpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=500, max_retries=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers(api: OpenAI, policy: str) -> None:
    check(ask(api, policy, 60), policy, 60)
