"""A request's thought is ended in whichever replica it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from deploy.app import _answer_now
from orchestrator.http.errors import HttpError

SILENT = object()
GONE = DeploymentUnavailableError(DeploymentID("Orchestrator"))


@dataclass
class Reply:
    """The reply of one replica, as Ray's broadcast has it: a count, or an exception."""

    said: Any

    async def get_async(self) -> Any:
        if self.said is SILENT:
            await asyncio.sleep(3600)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def asked(here: int, said: Any) -> Any:
    """Ask a replica with `here` requests; the replicas reply as `said`, or the call raises it."""

    async def replies() -> list[Reply]:
        if isinstance(said, Exception):
            raise said
        return [Reply(one) for one in said]

    live: Any = SimpleNamespace(answer_now=lambda *_: here)
    call = SimpleNamespace(_fetch_replica_results_async=replies)
    return _answer_now(live, SimpleNamespace(broadcast=lambda *_: call), "mine", None)  # type: ignore[arg-type]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("here", "said", "count"),
    [
        (0, [0, 0], 0),
        (1, [1, 1], 2),
        (0, [0, 1, GONE], 1),
        (0, [SILENT, 1], 1),
        (2, TimeoutError(), 2),
        (1, GONE, 1),
    ],
)
async def test_requests_of_all_replicas_count(here: int, said: Any, count: int) -> None:
    assert await asked(here, said) == count


@pytest.mark.virtual_time
@pytest.mark.parametrize("said", [TimeoutError(), GONE, [0, GONE], [0, SILENT]])
async def test_a_silent_replica_may_have_the_request(said: Any) -> None:
    with pytest.raises(HttpError) as failed:
        await asked(0, said)
    assert (failed.value.status, failed.value.code) == (503, "replica_silent")
