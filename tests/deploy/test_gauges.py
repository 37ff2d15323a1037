"""What replicas say of themselves, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from deploy.gauges import PoolMetrics
from workers.replica import Facts


def test_a_pool_with_a_lossy_method_says_so() -> None:
    registry = CollectorRegistry()
    pools = PoolMetrics({}, registry)
    pools.learn("small", [Facts(1, {"lossy": 0})])
    pools.learn("large", [Facts(2, {"lossy": 1}), Facts(3, {"lossy": 1})])
    assert registry.get_sample_value("baton_worker_lossy", {"worker": "small"}) == 0
    assert registry.get_sample_value("baton_worker_lossy", {"worker": "large"}) == 2
