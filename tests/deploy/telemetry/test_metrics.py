"""A replica's series, as Ray's metrics port and as /metrics show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families
from ray.serve import metrics

from deploy.telemetry.metrics import (
    LEAST,
    RayExporter,
    count_replicas,
    metrics_text,
    worker_families,
)

BOUNDS = (0.5, 1, 10)


class Ray:
    """Stands in for Ray's metrics: every record, by metric name and labels, in order."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, tuple[str, ...]], list[float]] = {}
        self.bounds: dict[str, list[float]] = {}

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.records.setdefault((name, tuple(labels.values())), []).append(value)

    def metric(self, *args: Any) -> RayMetric:
        return RayMetric(self, *args)

    def histogram(self, name: str, text: str, bounds: list[float], *args: Any) -> RayMetric:
        self.bounds[name] = bounds
        return RayMetric(self, name, text, *args)


class RayMetric:
    def __init__(self, ray: Ray, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._ray, self._name, self._labels = ray, name, labels

    def inc(self, value: float, labels: dict[str, str]) -> None:
        assert value > 0  # Ray's Counter refuses others
        self._record(value, labels)

    def set(self, value: float, labels: dict[str, str]) -> None:
        self._record(value, labels)

    def observe(self, value: float, labels: dict[str, str]) -> None:
        self._record(value, labels)

    def _record(self, value: float, labels: dict[str, str]) -> None:
        assert tuple(labels) == self._labels
        self._ray.record(self._name, labels, value)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setattr(metrics, "Counter", ray.metric)
    monkeypatch.setattr(metrics, "Gauge", ray.metric)
    monkeypatch.setattr(metrics, "Histogram", ray.histogram)
    return ray


def process(answered: int, seconds: list[float], live: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    requests = Counter("asked", "Asked.", ("policy",), registry=registry)
    for _ in range(answered):
        requests.labels("bild").inc()
    took = Histogram("took", "Seconds.", ("policy",), registry=registry, buckets=BOUNDS)
    for each in seconds:
        took.labels("bild").observe(each)
    Gauge("live", "Live.", registry=registry).set(live)
    Counter("never", "Never.", registry=registry)
    return registry


def parsed(text: bytes) -> dict[str, float]:
    """Every sample of a text as `name{label=value}`."""
    return {
        f"{sample.name}{sample.labels or ''}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_counter_grows_by_what_was_added_and_one_at_zero_is_exported_too(ray: Ray) -> None:
    exporter, registry = RayExporter(), process(2, [], 1)
    exporter.export(registry.collect())
    exporter.export(registry.collect())
    exporter.export(process(5, [], 1).collect())
    assert ray.records["asked", ("bild",)] == [2, 3]
    assert ray.records["never", ()] == [LEAST]
    assert LEAST + 1 == 1


def test_a_gauge_is_set_each_time_since_ray_forgets_it(ray: Ray) -> None:
    exporter, registry = RayExporter(), process(0, [], 7)
    exporter.export(registry.collect())
    exporter.export(registry.collect())
    assert ray.records["live", ()] == [7, 7]


def test_an_observation_goes_into_its_bucket_once(ray: Ray) -> None:
    exporter = RayExporter()
    exporter.export(process(0, [], 0).collect())  # no labels yet, so no series
    assert ray.records.keys() == {("live", ()), ("never", ())}
    exporter.export(process(0, [0.1, 5.0, 5.0, 99.0], 0).collect())
    assert ray.bounds == {"took": list(BOUNDS)}
    small, middle, other, beyond = ray.records["took", ("bild",)]
    assert (small, middle, other) == (0.5, 10, 10)  # a bucket's bound belongs to it
    assert beyond > BOUNDS[-1]
    exporter.export(process(0, [0.1, 5.0, 5.0, 99.0, 0.7], 0).collect())
    assert ray.records["took", ("bild",)][4:] == [1]


def test_replicas_stand_apart_in_the_text_and_their_sum_is_what_one_would_have_said() -> None:
    one, two = process(2, [0.1, 5.0], 1), process(3, [0.7, 99.0], 2)
    both = parsed(metrics_text([("", process(5, [0.1, 5.0, 0.7, 99.0], 3).collect())]))
    text = parsed(metrics_text([("a", one.collect()), ("b", two.collect())]))
    assert text["took_bucket{'le': '1.0', 'policy': 'bild', 'replica': 'b'}"] == 1
    assert text["never_total{'replica': 'a'}"] == 0
    assert len(text) == 2 * len(both)
    sums: dict[str, float] = {}
    for name, value in text.items():
        name = name.replace("'replica': 'a'", "'replica': ''")
        name = name.replace("'replica': 'b'", "'replica': ''")
        sums[name] = sums.get(name, 0.0) + value
    assert sums == pytest.approx(both)


def test_a_pool_with_a_lossy_method_says_so() -> None:
    pools: Any = [("a", "small", 0), ("b", "large", 1)]
    text = parsed(
        metrics_text((one, worker_families(name, {"lossy": lossy})) for one, name, lossy in pools)
    )
    assert text["baton_worker_lossy{'replica': 'a', 'worker': 'small'}"] == 0
    assert text["baton_worker_lossy{'replica': 'b', 'worker': 'large'}"] == 1
    assert text["baton_worker_passes_total{'replica': 'b', 'worker': 'large'}"] == 0


def test_replicas_are_counted_and_an_empty_pool_is_zero() -> None:
    registry = CollectorRegistry()
    count_replicas(registry, ("small", "large"))
    replicas = [("http", registry.collect()), ("s", worker_families("small", {}))]
    text = parsed(metrics_text(replicas))
    assert text["baton_orchestrator_replicas{'replica': 'http'}"] == 1
    assert {name: text[name] for name in text if "worker_replicas" in name} == {
        "baton_worker_replicas{'replica': 's', 'worker': 'small'}": 1,
        "baton_worker_replicas{'replica': 'http', 'worker': 'small'}": 0,
        "baton_worker_replicas{'replica': 'http', 'worker': 'large'}": 0,
    }
