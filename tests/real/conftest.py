"""The real models, loaded once, behind the HTTP app on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from deploy.lab.fetch import LINKS
from orchestrator.http.settings import ServiceLimits
from tests.orchestrator.serving import client, service, serving
from workers.engine.loading import load
from workers.worker import EngineWorker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.stem != "test_fetch":
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(600))


def open_model(
    name: str, *, dtype: str = "bfloat16", max_len: int = 2048, rows: int = 2, **more: Any
) -> EngineWorker:
    folder = LINKS / name
    if not (folder / "config.json").is_file():
        pytest.fail(f"there is no {folder}: run `make real-pair` first", pytrace=False)
    return load(folder, dtype=dtype, rows=rows, max_len=max_len, **more)


@pytest.fixture(scope="session")
def small() -> Iterator[EngineWorker]:
    worker = open_model("small")
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def large() -> Iterator[EngineWorker]:
    worker = open_model("large")
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def tiny() -> Iterator[EngineWorker]:
    worker = open_model("tiny", max_len=6000)
    yield worker
    worker.close()


@contextmanager
def served(small: EngineWorker, large: EngineWorker) -> Iterator[OpenAI]:
    """The official client on a service over two workers; it waits for as long as models take."""
    made = service(small, large, limits=ServiceLimits(max_tokens=8192, deadline_s=inf))
    with serving(made) as url, client(url, timeout=500) as api:
        yield api


@pytest.fixture(scope="session")
def pair(small: EngineWorker, large: EngineWorker) -> Iterator[OpenAI]:
    """Qwen2.5-Coder 0.5B and 1.5B."""
    with served(small, large) as api:
        yield api


@pytest.fixture(scope="session")
def mixed(tiny: EngineWorker, small: EngineWorker) -> Iterator[OpenAI]:
    """SmolLM2 135M as the small model beside Qwen2.5-Coder 0.5B: two vocabularies."""
    with served(tiny, small) as api:
        yield api
