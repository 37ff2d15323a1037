from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.workers.remote.vllm_like import PAIR
from workers.engine.loading import load
from workers.worker import EngineWorker


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[Any, EngineWorker]]:
    """The embedded pair in this process."""
    workers: dict[Any, EngineWorker] = {name: load(f"embedded:{name}", rows=4) for name in PAIR}
    yield workers
    for worker in workers.values():
        worker.close()
