"""Real vLLM, its build for CPUs; where it is not installed nothing here is collected."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def large() -> Iterator[Any]:
    """The embedded large model over vLLM."""
    from workers.vllm.loading import load

    worker = load("embedded:large", device="cpu", rows=4, max_len=1024, threads=1)
    yield worker
    worker.close()


def _builtin(model: str) -> Iterator[Any]:
    from workers.engine.loading import load

    worker = load(model, rows=4, max_len=1024, threads=1)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def builtin() -> Iterator[Any]:
    """The same model over our own engine."""
    yield from _builtin("embedded:large")


@pytest.fixture(scope="session")
def builtin_small() -> Iterator[Any]:
    """The embedded small model over our own engine."""
    yield from _builtin("embedded:small")
