"""Workers for tests of policies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.workers import load_worker
from orchestrator.worker import Worker


@pytest.fixture(scope="module")
def embedded() -> Iterator[Worker]:
    """An engine with the embedded pair's small model."""
    worker = load_worker(load(DEFAULT_FILE).args.workers.small)
    yield worker
    worker.close()
