"""The service's /metrics: the sum of what all replicas counted, and what those alive say of now.

Whoever is asked tells the same. Counters and histograms come from the ledger, into which every
replica writes first, so that the answer holds all that was counted until now; gauges are asked of
the replicas, and one that does not answer is not alive. Gauges are summed, but ages
(`..._age_seconds`): there the oldest counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from deploy.telemetry.ledger import Counts, Series
from deploy.telemetry.reporter import Reporter, series
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import WorkerName
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaStatus

COUNTERS: Final = {
    "prompt_tokens": "Tokens of the prefixes that calls to this pool carried, found cached or not.",
    "cached_tokens": "Of baton_worker_prompt_tokens_total, those found in the replica's cache.",
    "generated_tokens": "Tokens that decoding produced in this pool, whatever became of them.",
    "passes": "Forward passes of the pool's model, prompts and decoding, whatever the batch.",
    "rounds": "Rounds of the token loop, summed over the rows that took part in each.",
    "emitted_tokens": "Tokens that rounds of the token loop gave to their rows; divided by "
    "baton_worker_rounds_total, the mean acceptance length (bonus token included).",
    "plain_rounds": "Of baton_worker_rounds_total, those that the method auto made without drafts.",
    "drafted_rounds": "Of baton_worker_rounds_total, those that the method auto made with drafts.",
    "switches": "Changes of the decoding method that the method auto has chosen.",
    "calls": "Calls begun on replicas of this pool: generate, classify and verify.",
    "later_calls": "Of baton_worker_calls_total, those of a request that had called this pool "
    "before, tries after a lost replica included.",
    "affine_calls": "Of baton_worker_later_calls_total, those that reached a replica which had "
    "served their request before; the ratio of both is the hit rate of routing.",
}
GAUGES: Final = {
    "live_rows": "Sequences being read or decoded now, over the pool's replicas.",
    "queued": "Calls waiting for a row inside the pool's replicas.",
    "rows": "Sequences that the pool's replicas can work on at once.",
    "prefixes": "Requests whose last call to a replica of this pool was less than 10 s ago, whose "
    "prefix is therefore worth its place in the cache.",
    "slots": "Prefixes that the pool's replicas can keep in their caches.",
    "held_tokens": "Tokens in the caches of the pool's replicas, of calls now and of ended ones.",
    "lossy": "Replicas with a lossy speculation method, as the default or on request.",
}
REPLICAS: Final = "Replicas of the pool that answer within a second."
ORCHESTRATORS: Final = "Replicas of the HTTP surface that answer within a second."
AGE: Final = "_age_seconds"


def worker_families(name: WorkerName, stats: Mapping[str, int]) -> list[Metric]:
    """The series of a pool's replica, from its counters and gauges; zeros where there are none."""
    families: list[Metric] = []
    for kind, texts in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for key, text in texts.items():
            family = kind(f"baton_worker_{key}", text, labels=("worker",))
            family.add_metric((name,), stats.get(key, 0))
            families.append(family)
    return families


class WorkerReport:
    """What a replica of a worker pool does with its statistics: it reports them (`Reporter`)."""

    def __init__(self, name: WorkerName) -> None:
        self._name, self._stats = name, dict[str, int]()
        self._reporter = Reporter(lambda: worker_families(self._name, self._stats))

    def __call__(self, stats: Mapping[str, int]) -> None:
        """Write them down; what cannot be written now is written next time."""
        self._stats = dict(stats)
        self._reporter.try_report()


class Exposition:
    """What one replica of the HTTP surface tells of the whole service.

    Args:
        registry: this process's own series.
        pools: the workers that are replicas of this service.
        peers: lets every replica of the HTTP surface report, and gives the gauges of each.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        reporter: Reporter,
        pools: Mapping[WorkerName, ReplicaWorker],
        peers: Callable[[], Awaitable[list[Counts]]],
    ) -> None:
        self._registry, self._reporter = registry, reporter
        self._pools, self._peers = pools, peers

    async def text(self) -> bytes:
        """The service's metrics as Prometheus text.

        Raises:
            Exception: the ledger cannot be reached. (A part of the sum would be a wrong sum.)
        """
        peers, answers = await asyncio.gather(
            self._peers(), asyncio.gather(*map(_everyone, self._pools.values()))
        )
        await asyncio.to_thread(self._reporter.report)
        values = await asyncio.to_thread(self._reporter.ledger.total)
        values["baton_orchestrator_replicas", ()] = len(peers)
        told = list(peers)
        for name, facts in zip(self._pools, answers, strict=True):
            values["baton_worker_replicas", (("worker", name),)] = len(facts)
            told += [gauges_of(worker_families(name, fact.stats)) for fact in facts]
        values |= together(told)
        return expose(described(self._registry.collect(), self._pools), values)


def described(own: Iterable[Metric], pools: Iterable[WorkerName]) -> list[Metric]:
    """All families of a service: those of an orchestrator's registry, and those of its pools."""
    families = [*own, _gauge("baton_orchestrator_replicas", ORCHESTRATORS)]
    for name in pools:
        families += worker_families(name, {})
        families.append(_gauge("baton_worker_replicas", REPLICAS, worker=name))
    return families


def expose(families: Iterable[Metric], values: Counts) -> bytes:
    """Prometheus text of `families`, with `values` in place of their own, zero where there is none.

    A sample that a family lacks is added to it where its name belongs there.
    """
    merged: dict[str, Metric] = {}
    samples: defaultdict[str, dict[Series, float]] = defaultdict(dict)
    owner: dict[str, str] = {}
    for family in families:
        merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        owner |= dict.fromkeys(_sample_names(family), family.name)
        samples[family.name] |= {
            series(sample): 0.0 for sample in family.samples if sample.name in owner
        }
    for key, value in values.items():
        if (name := owner.get(key[0])) is not None:
            samples[name][key] = value
    for name, family in merged.items():
        for (sample, labels), value in sorted(samples[name].items(), key=_order):
            family.add_sample(sample, dict(labels), value)
    return generate_latest(_Families(merged))


class _Families(Collector):
    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def together(told: Iterable[Counts]) -> dict[Series, float]:
    """The gauges of several replicas as those of one service."""
    values: dict[Series, float] = {}
    for gauges in told:
        for key, value in gauges.items():
            before = values.get(key, 0.0)
            values[key] = max(before, value) if key[0].endswith(AGE) else before + value
    return values


def gauges_of(families: Iterable[Metric]) -> dict[Series, float]:
    """The samples that say how it is now."""
    return {
        series(sample): sample.value
        for family in families
        if family.type == "gauge"
        for sample in family.samples
    }


def _sample_names(family: Metric) -> list[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return [family.name + suffix for suffix in suffixes.get(family.type, ("",))]


def _order(item: tuple[Series, float]) -> tuple[object, ...]:
    """A histogram's buckets stand together, the smallest first, before its sum and count."""
    (name, labels), _ = item
    others = tuple(label for label in labels if label[0] != "le")
    bound = float(dict(labels).get("le", "inf"))
    return others, not name.endswith("_bucket"), bound, name


def _gauge(name: str, text: str, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), 0.0)
    return family


async def _everyone(pool: ReplicaWorker) -> list[ReplicaStatus]:
    try:
        return await pool.report_all()
    except WorkerUnavailable:
        return []
