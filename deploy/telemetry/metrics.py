"""A replica's metrics: on its Ray node's metrics port, and in the text of /metrics.

Every replica exports its own series through Ray's metrics API. Ray serves those of all processes of
a node at the node's metrics port, as `ray_baton_...` with the labels `deployment`, `replica` and
`application`, and keeps the counters of processes that have ended. Prometheus scrapes that port;
over all replicas a counter is `sum(increase(ray_baton_..._total[5m]))`.

/metrics is for people: the series of all replicas that answer now, each with the label `replica`.
It lacks the counts of replicas that have ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import yaml
from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import WorkerName

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from workers.replica.client import ReplicaWorker
    from workers.replica.server import ReplicaStatus

log = logging.getLogger(__name__)

_SERIES: Final = Path(__file__).with_name("worker_metrics.yaml").read_text(encoding="utf-8")
COUNTERS, GAUGES, BY_POSITION = yaml.safe_load(_SERIES).values()
ORCHESTRATORS: Final = "1 for each HTTP replica; the sum is how many there are."
TIMEOUT_S: Final = 1.0  # seconds for a replica to answer, or /metrics lacks it
LEAST: Final = sys.float_info.min  # makes a counter's series, and changes no sum


def worker_families(worker: WorkerName, stats: Mapping[str, int]) -> list[Metric]:
    """Return the series of one replica of a pool; 0 if `stats` has no entry."""
    values = {**stats, "replicas": 1}
    families: list[Metric] = []
    for kind, texts in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for key, text in texts.items():
            family = kind(f"baton_worker_{key}", text, labels=("worker",))
            family.add_metric((worker,), values.get(key, 0))
            families.append(family)
    for key, text in BY_POSITION.items():
        family = CounterMetricFamily(f"baton_worker_{key}", text, labels=("worker", "position"))
        for name, value in stats.items():
            if name.startswith(f"{key}_"):
                family.add_metric((worker, name.removeprefix(f"{key}_")), value)
        families.append(family)
    return families


def count_replicas(registry: CollectorRegistry, pools: Iterable[WorkerName]) -> None:
    """Register the series that counts an HTTP replica, and a 0 for each pool, which may be empty:
    the sum of a pool's series is the number of its replicas."""
    Gauge("baton_orchestrator_replicas", ORCHESTRATORS, registry=registry).set(1)
    text = GAUGES["replicas"]
    replicas = Gauge("baton_worker_replicas", text, ("worker",), registry=registry)
    for worker in pools:
        replicas.labels(worker).set(0)


class RayExporter:
    """Copies a replica's series to Ray's metrics; call `export` every few seconds.

    Make and use it in a replica of Ray Serve, which sets the series' labels.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._exported: dict[tuple[str, ...], float] = {}

    def export(self, families: Iterable[Metric]) -> None:
        """Update Ray's metrics to `families`, without blocking or I/O.

        A failure is only logged: a replica that cannot export its metrics still serves.
        """
        try:
            for family in families:
                if family.samples:
                    self._export(family)
        except Exception:
            log.exception("the metrics of this replica could not be exported")

    def _export(self, family: Metric) -> None:
        metric = self._metrics.get(family.name)
        if metric is None:
            metric = self._metrics[family.name] = _ray_metric(family)
        below = 0.0  # of a histogram's buckets, which are cumulative
        for sample in family.samples:
            if family.type == "gauge":
                metric.set(sample.value, sample.labels)
            elif family.type == "histogram":
                below = self._observe(metric, sample, below)
            elif sample.name.endswith("_total"):
                is_new, more = self._increase(sample)
                # Ray accepts no 0. A new counter is exported all the same, so that `increase`
                # sees its first count.
                if more > 0 or is_new:
                    metric.inc(max(more, LEAST), sample.labels)

    def _observe(self, metric: Any, sample: Sample, below: float) -> float:
        """Repeat a bucket's new observations, each with the bucket's upper bound; return how many
        there are in this bucket and those below.

        Ray keeps only the bucket of an observation, so buckets and counts are exact, and `_sum` is
        computed from the buckets' middles.
        """
        if not sample.name.endswith("_bucket"):
            return 0.0
        _, more = self._increase(sample)
        labels = dict(sample.labels)
        bound = float(labels.pop("le"))
        for _ in range(round(more - below)):
            metric.observe(min(bound, sys.float_info.max), labels)
        return more

    def _increase(self, sample: Sample) -> tuple[bool, float]:
        """Return whether a sample is new, and its increase since the last call."""
        key = (sample.name, *sample.labels.values())
        before = self._exported.get(key)
        self._exported[key] = sample.value
        return before is None, sample.value - (before or 0.0)


def worker_exporter(worker: WorkerName) -> Callable[[Mapping[str, int]], None]:
    """Return a function that exports a replica's statistics; call this in the replica."""
    exporter = RayExporter()
    return lambda stats: exporter.export(worker_families(worker, stats))


async def scrape(replicas: DeploymentHandle, pools: Mapping[WorkerName, ReplicaWorker]) -> bytes:
    """Return the text of /metrics: the series of all replicas that answer within a second.

    `replicas` are the HTTP replicas, whose method `series` returns the name and series of each.
    """
    found, *statuses = await asyncio.gather(_series(replicas), *map(_statuses, pools.values()))
    for worker, pool in zip(pools, statuses, strict=True):
        found += [(one.replica, worker_families(worker, one.stats)) for one in pool]
    return metrics_text(found)


async def _series(replicas: DeploymentHandle) -> list[Any]:
    from workers.replica.broadcast import broadcast

    answers = broadcast(replicas, "series", timeout_s=TIMEOUT_S)
    return [one async for one in answers if not isinstance(one, BaseException)]


async def _statuses(pool: ReplicaWorker) -> list[ReplicaStatus]:
    try:
        return await pool.statuses()
    except WorkerUnavailable:
        return []


def metrics_text(replicas: Iterable[tuple[str, Iterable[Metric]]]) -> bytes:
    """Return several replicas' series as Prometheus text, each with the label `replica`."""
    merged: dict[str, Metric] = {}
    for replica, families in replicas:
        for family in families:
            one = Metric(family.name, family.documentation, family.type)
            one = merged.setdefault(family.name, one)
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    labels = {**sample.labels, "replica": replica}
                    one.add_sample(sample.name, labels, sample.value)
    return generate_latest(cast("Collector", SimpleNamespace(collect=merged.values)))


def _ray_metric(family: Metric) -> Any:
    from ray.serve import metrics

    labels = tuple(label for label in family.samples[0].labels if label != "le")
    if family.type == "histogram":
        bounds = {float(one.labels["le"]) for one in family.samples if "le" in one.labels}
        return metrics.Histogram(
            family.name, family.documentation, sorted(bounds - {float("inf")}), labels
        )
    kind = metrics.Gauge if family.type == "gauge" else metrics.Counter
    return kind(family.name, family.documentation, labels)  # Ray adds `_total` to counters
