"""A call to a replica beside Serve's own bare call, from one caller in one run.

The worker answers at once, so only the path is timed: the caller, the wire, the replica. The caller
is a replica of Serve, as the orchestrator is. Both kinds of call take turns in blocks, so both see
the machine at the same moments.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

from ray import serve

from deploy.evaluation.summary import Row
from deploy.lab.bench.calls import QUERY
from deploy.launch.ray_node import own_ray
from orchestrator.types import (
    Classification,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    Transcript,
    Usage,
)
from orchestrator.worker import Call
from workers.replica.client import ReplicaWorker
from workers.replica.server import deployment

STEP: Final = 30  # tokens of a step
SHARE: Final = {"num_cpus": 0.2}
BLOCK: Final = 50  # calls of one kind in a row
QUESTION: Final = Transcript((Message("user", "How many?"),))


def bench_round_trip(blocks: int = 20) -> list[Row]:
    """A row for each kind of call, over `blocks` blocks of `BLOCK` calls each.

    Call `deploy.launch.environment.prepare` before anything imports ray.
    """
    engine: Any = InstantEngine  # it only judges
    pool = deployment("InstantWorker", engine)
    with own_ray():
        bare = serve.deployment(Bare, ray_actor_options=SHARE, max_ongoing_requests=64)
        caller = serve.deployment(Caller, ray_actor_options=SHARE)
        handle = serve.run(caller.bind(pool, bare.bind()), route_prefix=None)
        rows: list[Row] = handle.measure.remote(blocks).result()
    return rows


class InstantEngine:
    """A worker that judges at once."""

    context, alive = None, True
    sampling, efforts = Sampling(), None

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        shares = (0.0,) * (len(query.labels) - 1) + (1.0,)
        return Classification(query.labels, shares, usage=Usage(passes=1))

    def stats(self) -> dict[str, int]:
        return {"live_rows": 0, "queued": 0, "rows": 1, "slots": 1}

    def close(self) -> None: ...


class Bare:
    """A deployment that returns what it gets."""

    async def echo(self, sent: Any) -> Any:
        return sent


class Caller:
    """Calls a pool of workers, and a bare deployment."""

    def __init__(self, pool: Any, bare: Any) -> None:
        self._worker = ReplicaWorker(pool)
        self._bare = bare.options(
            _by_reference=False, request_serialization="pickle", response_serialization="pickle"
        )

    async def measure(self, blocks: int) -> list[Row]:
        steps = [
            Segment(
                "small", f"{n}:{' and' * 28}.\n\n", tuple(range(STEP)), (-0.1,) * STEP, "instant"
            )
            for n in range(BLOCK)
        ]
        transcripts = list(accumulate(steps, Transcript.extend, initial=QUESTION))

        async def classify(block: int, number: int) -> None:
            """Judge a thought that has a step more each time."""
            call = Call(f"bench-{block}", transcripts[number + 1], "large")
            await self._worker.classify(call, QUERY)

        async def bare(block: int, number: int) -> None:
            await self._bare.echo.remote(b"." * 2000)

        seconds: dict[str, list[float]] = {"bare": [], "classify": []}
        cpu: dict[str, list[float]] = {"bare": [], "classify": []}
        for block in range(blocks + 1):  # the first warms up
            for kind, call in (("bare", bare), ("classify", classify)):
                began, times = process_time(), []
                for number in range(BLOCK):
                    asked = perf_counter()
                    await call(block, number)
                    times.append(perf_counter() - asked)
                if block:
                    seconds[kind] += times
                    cpu[kind].append((process_time() - began) / BLOCK)
        return [
            {"call": kind, "ms": 1e3 * median(seconds[kind]), "cpu_ms": 1e3 * median(cpu[kind])}
            for kind in seconds
        ]
