"""What replicas say of themselves, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter as Sums

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from deploy.telemetry.exposition import expose, gauges_of, together, worker_families
from deploy.telemetry.reporter import counts_of


def process(answered: int, seconds: list[float], live: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    requests = Counter("asked", "Asked.", ("policy",), registry=registry)
    for _ in range(answered):
        requests.labels("bild").inc()
    took = Histogram("took", "Seconds.", ("policy",), registry=registry, buckets=(0.5, 1, 10))
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


def test_the_sum_of_two_processes_is_what_one_would_have_said() -> None:
    one, two = process(2, [0.1, 5.0], 1), process(3, [0.7, 99.0], 2)
    both = process(5, [0.1, 5.0, 0.7, 99.0], 3)
    values = Sums(counts_of(one.collect()))
    for counts in (counts_of(two.collect()), gauges_of(one.collect()), gauges_of(two.collect())):
        values.update(counts)
    text = expose(one.collect(), values)
    expected = expose(both.collect(), {**counts_of(both.collect()), **gauges_of(both.collect())})
    assert text == expected
    assert parsed(text)["took_bucket{'le': '1.0', 'policy': 'bild'}"] == 2
    assert parsed(text)["never_total"] == 0


def test_what_the_one_asked_never_saw_is_told_all_the_same() -> None:
    idle = process(0, [], 0)
    text = parsed(expose(idle.collect(), counts_of(process(4, [0.1], 0).collect())))
    assert text["asked_total{'policy': 'bild'}"] == 4
    assert text["took_count{'policy': 'bild'}"] == 1


def test_a_count_of_another_version_is_left_out() -> None:
    text = expose(process(1, [], 0).collect(), {("renamed_total", ()): 3.0})
    assert b"renamed" not in text


def test_a_pool_with_a_lossy_method_says_so() -> None:
    pools = [("small", 0), ("large", 1), ("large", 1)]
    values = together(gauges_of(worker_families(name, {"lossy": lossy})) for name, lossy in pools)  # type: ignore[arg-type]
    families = [*worker_families("small", {}), *worker_families("large", {})]
    text = parsed(expose(families, values))
    assert text["baton_worker_lossy{'worker': 'small'}"] == 0
    assert text["baton_worker_lossy{'worker': 'large'}"] == 2
    assert text["baton_worker_passes_total{'worker': 'large'}"] == 0


def test_of_ages_the_oldest_counts() -> None:
    states = [{("waiting", ()): 2.0, ("config_age_seconds", ()): age} for age in (3.0, 9.0, 1.0)]
    assert together(states) == {("waiting", ()): 6.0, ("config_age_seconds", ()): 9.0}
    assert together([]) == {}
