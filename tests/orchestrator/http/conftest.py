"""The embedded large model, for tests that need a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.launch.workers import load_worker
from workers.worker import EngineWorker


@pytest.fixture(scope="module")
def large() -> Iterator[EngineWorker]:
    worker = load_worker(load(DEFAULT_FILE).args.workers.large)
    yield worker
    worker.close()
