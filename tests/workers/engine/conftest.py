"""A worker on a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine.loading import load
from workers.worker import EngineWorker


@pytest.fixture
def worker(checkpoint: Path) -> Iterator[EngineWorker]:
    worker = load(checkpoint, rows=2, slots=3, max_len=300, queue=2)
    yield worker
    worker.close()
