"""Workers for tests of policies: the embedded pair, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.workers import load_worker
from workers.worker import EngineWorker

WORKERS = load(DEFAULT_FILE).args.workers


@pytest.fixture(scope="session")
def embedded() -> Iterator[EngineWorker]:
    """An engine with the embedded pair's small model."""
    worker = load_worker(WORKERS.small)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def large() -> Iterator[EngineWorker]:
    """An engine with the embedded pair's large model."""
    worker = load_worker(WORKERS.large)
    yield worker
    worker.close()
