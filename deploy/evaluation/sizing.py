"""What one request costs a running service, and what a rate of requests would need.

Everything is a difference between two readings of counters: those of the service's replicas at
/metrics, and where its Redis is named those of `INFO`. What goes on without any request (health
checks, followers of the store) is measured first, and taken off.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import RedisError

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import (
    HttpClient,
    RequestOptions,
    ask,
    authorization,
    base_address,
    error_of,
    reason,
)
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.evaluate import EvaluatedAnswer, Problem
from deploy.evaluation.service_client import READ_KEYS
from orchestrator.errors import ConfigError, WorkerUnavailable
from workers.remote.address import trusted

QUIET_S: Final = 20.0  # without requests, to measure the load at rest
SETTLE_S: Final = 3.0  # until outcomes are in the store
LOOKS: Final = 10  # at /ready, each after the cache of the one before has expired
LOOK_S: Final = 1.1
LOOP_FULL: Final = 0.7  # of a core, at which an event loop counts as full
ROWS_FULL: Final = 0.8  # of a pool's rows, likewise
_OURS: Final = ("info", "hello", "auth", "client|setinfo", "select")  # of whoever measures


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of one moment, summed over the replicas that answered.

    Redis's are zero where none is named.
    """

    at: float
    replicas: frozenset[str]
    cpu_s: float
    small_calls: float
    large_calls: float
    redis_calls: float = 0.0
    redis_us: float = 0.0
    redis_bytes: float = 0.0
    redis_memory: float = 0.0


def check_same_replicas(*readings: Reading) -> None:
    """Refuse readings whose sums are over different replicas: their differences mean nothing.

    Raises:
        WorkerUnavailable: a replica came, went, or did not answer in time.
    """
    changed = frozenset.union(*(one.replicas for one in readings)) - frozenset.intersection(
        *(one.replicas for one in readings)
    )
    if changed:
        raise WorkerUnavailable(
            "expected the same replicas at /metrics before and after the requests, but these were "
            f"not always there: {', '.join(sorted(changed))}; measure again, on a service with a "
            "fixed number of replicas"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Means per request, and what holds for the service as a whole."""

    requests: int
    seconds: float  # wall time
    small_tokens: float
    large_tokens: float
    judge_calls: float
    small_calls: float
    large_calls: float
    small_row_s: float  # seconds for which a row of the pool is held
    large_row_s: float
    cpu_s: float  # CPU seconds of the orchestrators
    redis_calls: float | None
    redis_us: float | None  # microseconds of Redis's one thread
    redis_bytes: float | None  # over the network, both ways
    redis_kept: float | None  # bytes that stay until they expire
    idle_cpu: float  # cores that one orchestrator takes without requests
    idle_redis: float | None  # commands a second of one orchestrator without requests
    http_ms: float  # an empty request and its answer
    call_ms: float  # an empty Serve call and its answer
    small_rows: float | None  # of a replica; None where a server is asked instead
    large_rows: float | None


def measure(
    url: str,
    problems: Sequence[Problem],
    candidate: Candidate,
    *,
    options: RequestOptions | None = None,
    concurrency: int = 4,
    redis: Redis | None = None,
) -> Measured:
    """Send these problems to the service at `url`, `concurrency` at a time; it needs to be idle.

    Raises:
        BatonError: the service or its Redis does not answer, or a request failed.
    """
    client = HttpClient(url, options)
    address, headers = base_address(url), authorization(READ_KEYS)
    http = httpx.Client(
        base_url=address, headers=headers, timeout=30.0, trust_env=False, verify=trusted()
    )
    with http:
        first, scraped = _read(http, redis)
        if not first.cpu_s:
            raise ConfigError(
                f"{url}: expected baton_orchestrator_cpu_seconds_total at /metrics, found none; "
                "is it a Baton service?"
            )
        sizes = {name: _rows(scraped, name) for name in ("small", "large")}
        http_ms, call_ms = _waits(http)
        quiet, _ = _read(http, redis)
        time.sleep(QUIET_S)
        before, _ = _read(http, redis)
        answers = asyncio.run(_ask(client, problems, candidate, concurrency))
        time.sleep(SETTLE_S)
        after, _ = _read(http, redis)
    check_same_replicas(quiet, before, after)
    replicas = scraped["baton_orchestrator_replicas", ""]

    def idle(name: str) -> float:
        more: float = getattr(before, name) - getattr(quiet, name)
        return more / (before.at - quiet.at)

    def per_request(name: str) -> float:
        """The increase of a counter for each request."""
        total: float = getattr(after, name) - getattr(before, name)
        return max(0.0, total - idle(name) * (after.at - before.at)) / len(answers)

    def mean(name: str) -> float:
        return statistics.fmean(getattr(answer.metrics, name) for answer in answers)

    def held(*names: str) -> float:
        return statistics.fmean(
            sum(answer.metrics.ms[name] for name in names) / 1000 for answer in answers
        )

    stored = redis is not None
    return Measured(
        requests=len(answers),
        seconds=held("total"),
        small_tokens=mean("small_tokens"),
        large_tokens=mean("large_tokens"),
        judge_calls=mean("judge_calls"),
        small_calls=per_request("small_calls"),
        large_calls=per_request("large_calls"),
        small_row_s=held("small"),
        large_row_s=held("large", "classify"),
        cpu_s=per_request("cpu_s"),
        redis_calls=per_request("redis_calls") if stored else None,
        redis_us=per_request("redis_us") if stored else None,
        redis_bytes=per_request("redis_bytes") if stored else None,
        redis_kept=per_request("redis_memory") if stored else None,
        idle_cpu=idle("cpu_s") / replicas,
        idle_redis=idle("redis_calls") / replicas if stored else None,
        http_ms=http_ms,
        call_ms=call_ms,
        small_rows=sizes["small"],
        large_rows=sizes["large"],
    )


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """One part of a service under a load."""

    part: str
    each: float  # requests a second that one of it carries
    count: int  # how many the load needs
    formula: str


def needs(measured: Measured, per_minute: float) -> list[ReplicaNeed]:
    """What a load needs, by Little's law; what is full first comes first."""
    arrivals = per_minute / 60
    parts = [
        ("orchestrator", LOOP_FULL, measured.cpu_s, "{full:g} core / {cost:.4g} s of CPU"),
        (
            "small replica",
            ROWS_FULL * (measured.small_rows or 0.0),
            measured.small_row_s,
            "{full:.3g} rows / {cost:.3g} s in a row",
        ),
        (
            "large replica",
            ROWS_FULL * (measured.large_rows or 0.0),
            measured.large_row_s,
            "{full:.3g} rows / {cost:.3g} s in a row",
        ),
        ("Redis", LOOP_FULL, (measured.redis_us or 0.0) / 1e6, "{full:g} core / {cost:.3g} s"),
    ]
    replicas = []
    for part, full, cost, why in parts:
        if cost > 0 and full > 0:
            count = math.ceil(round(arrivals * cost / full, 9))
            replicas.append(ReplicaNeed(part, full / cost, count, why.format(full=full, cost=cost)))
    return sorted(replicas, key=lambda need: need.each)


async def _ask(
    client: HttpClient, problems: Sequence[Problem], candidate: Candidate, concurrency: int
) -> list[EvaluatedAnswer]:
    async def one(problem: Problem) -> EvaluatedAnswer:
        return await ask(client, problem.question, candidate)

    try:
        return await map_concurrently(one, problems, concurrency)
    finally:
        await client.aclose()


def _waits(http: httpx.Client) -> tuple[float, float]:
    """Milliseconds of an empty request, and of a Serve call: /ready makes one to each pool."""

    def took(path: str) -> float:
        began = time.perf_counter()
        _get(http, path)
        return 1000 * (time.perf_counter() - began)

    empty = statistics.median(took("/health") for _ in range(5 * LOOKS))
    looks = []
    for _ in range(LOOKS):
        time.sleep(LOOK_S)
        looks.append(took("/ready"))
    return empty, max(0.0, statistics.median(looks) - empty)


def _read(http: httpx.Client, redis: Redis | None) -> tuple[Reading, dict[tuple[str, str], float]]:
    """The counters of now, and every sample of /metrics by its name and worker, summed."""
    scraped: dict[tuple[str, str], float] = {}
    replicas = set[str]()
    for family in text_string_to_metric_families(_get(http, "/metrics").text):
        for sample in family.samples:
            replicas.add(sample.labels.get("replica", ""))
            key = sample.name, sample.labels.get("worker", "")
            scraped[key] = scraped.get(key, 0.0) + sample.value
    calls = (scraped.get(("baton_worker_calls_total", name), 0.0) for name in ("small", "large"))
    cpu_s = scraped.get(("baton_orchestrator_cpu_seconds_total", ""), 0.0)
    reading = Reading(time.monotonic(), frozenset(replicas), cpu_s, *calls, *_redis(redis))
    return reading, scraped


def _rows(scraped: Mapping[tuple[str, str], float], worker: str) -> float | None:
    """Rows of one replica; None where a remote server runs the model.

    Raises:
        WorkerUnavailable: no replica has answered.
    """
    if ("baton_worker_replicas", worker) not in scraped:
        return None
    replicas = scraped["baton_worker_replicas", worker]
    if not replicas:
        raise WorkerUnavailable(f"no replica of the {worker} worker answers; try again")
    return scraped["baton_worker_rows", worker] / replicas


def _redis(redis: Redis | None) -> tuple[float, ...]:
    """Commands, microseconds, bytes over the network, bytes in memory."""
    if redis is None:
        return ()
    try:
        info: dict[str, Any] = redis.info("all")
    except RedisError as error:
        raise WorkerUnavailable(f"Redis: {' '.join(str(error).split())}") from None
    commands = [
        value
        for name, value in info.items()
        if name.startswith("cmdstat_") and name.removeprefix("cmdstat_") not in _OURS
    ]
    return (
        sum(command["calls"] for command in commands),
        sum(command["usec"] for command in commands),
        info["total_net_input_bytes"] + info["total_net_output_bytes"],
        info["used_memory"],
    )


def _get(http: httpx.Client, path: str) -> httpx.Response:
    try:
        response = http.get(path)
    except httpx.HTTPError as error:
        raise WorkerUnavailable(f"{http.base_url}: {reason(error)}") from None
    if not response.is_success:
        raise error_of(response, READ_KEYS)
    return response
