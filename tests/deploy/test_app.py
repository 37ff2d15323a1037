"""A request's thought is ended in whichever replica it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from deploy.app import _answer_now
from orchestrator.http.errors import HttpError

GONE = DeploymentUnavailableError(DeploymentID("Orchestrator"))


def asked(here: int, said: Any) -> Any:
    """Ask a replica with `here` requests; all replicas reply `said`, or raise it."""

    async def results_async(**_: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    live: Any = SimpleNamespace(answer_now=lambda *_: here)
    peers: Any = SimpleNamespace(broadcast=lambda *_: SimpleNamespace(results_async=results_async))
    return _answer_now(live, peers, "mine", None)


@pytest.mark.parametrize(
    ("here", "said", "count"),
    [(0, [0, 0], 0), (1, [1, 1], 2), (0, [0, 1, GONE], 1), (2, TimeoutError(), 2), (1, GONE, 1)],
)
async def test_requests_of_all_replicas_count(here: int, said: Any, count: int) -> None:
    assert await asked(here, said) == count


@pytest.mark.parametrize("said", [TimeoutError(), GONE, [0, GONE]])
async def test_a_silent_replica_may_have_the_request(said: Any) -> None:
    with pytest.raises(HttpError) as failed:
        await asked(0, said)
    assert (failed.value.status, failed.value.code) == (503, "replica_silent")
