"""The engines' counters in the service's /metrics: the sum over all live replicas of each pool.

A counter must not go backwards when a replica dies and another starts at zero, so what is added to
the sum is each process's progress since it was last asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from orchestrator.actions import WorkerName
from orchestrator.errors import WorkerUnavailable
from workers.replica import Facts, ReplicaWorker

COUNTERS: Final = {
    "prompt_tokens": "Tokens of all prefixes that calls carried.",
    "cached_tokens": "Of the prompt tokens, those found in a cache.",
    "generated_tokens": "Tokens generated.",
    "passes": "Forward passes of the model.",
    "rounds": "Rows times rounds of the token loop.",
    "emitted_tokens": "Tokens the token loop emitted; over rounds, the mean acceptance length.",
    "plain_rounds": "Of the rounds, those that auto decoded without drafts.",
    "drafted_rounds": "Of the rounds, those that auto decoded with drafts.",
    "switches": "Changes of auto's method.",
}
GAUGES: Final = {
    "live_rows": "Sequences being worked on.",
    "queued": "Calls waiting for a row.",
    "lossy": "Replicas whose speculation method is lossy.",
}


class PoolMetrics:
    """Asks all replicas when it is scraped."""

    def __init__(
        self, workers: Mapping[WorkerName, ReplicaWorker], registry: CollectorRegistry
    ) -> None:
        self._workers, self._registry = workers, registry
        self._seen: dict[tuple[WorkerName, int], dict[str, int]] = {}
        self._replicas = Gauge(
            "baton_worker_replicas", "Replicas that answer.", ("worker",), registry=registry
        )
        self._counters = {
            name: Counter(f"baton_worker_{name}", text, ("worker",), registry=registry)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(f"baton_worker_{name}", text, ("worker",), registry=registry)
            for name, text in GAUGES.items()
        }

    async def exposition(self) -> bytes:
        """The registry as Prometheus text, after news from the pools."""
        await asyncio.gather(*(self._ask(name, pool) for name, pool in self._workers.items()))
        return generate_latest(self._registry)

    async def _ask(self, name: WorkerName, pool: ReplicaWorker) -> None:
        try:
            self.learn(name, await pool.everyone())
        except WorkerUnavailable:
            self.learn(name, [])

    def learn(self, name: WorkerName, facts: list[Facts]) -> None:
        """Take in what the replicas of a pool said."""
        self._replicas.labels(name).set(len(facts))
        for key, gauge in self._gauges.items():
            gauge.labels(name).set(sum(fact.stats.get(key, 0) for fact in facts))
        for fact in facts:
            before = self._seen.get((name, fact.pid), {})
            for key, counter in self._counters.items():
                counter.labels(name).inc(max(0, fact.stats.get(key, 0) - before.get(key, 0)))
            self._seen[name, fact.pid] = fact.stats
