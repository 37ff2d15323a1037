"""The process's Prometheus series; a request is counted when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from orchestrator.loop.accumulator import WORKERS, ResponseAccumulator

_TEXTS = yaml.safe_load(Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"))
"""The text of each series, by its name."""


class _Processor(Collector):
    """CPU seconds of this process, to a tenth, so that the series of an idle replica stays."""

    def collect(self) -> Iterator[Metric]:
        name, value = "orchestrator_cpu_seconds", int(process_time() * 10) / 10
        yield CounterMetricFamily(f"baton_{name}", _TEXTS[name], value=value)


class ServiceMetrics:
    """The process's `baton_` series, on a registry of the caller's."""

    BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, *labels: str) -> Counter:
            return Counter(f"baton_{name}", _TEXTS[name], labels, registry=registry)

        def seconds(name: str) -> Histogram:
            return Histogram(
                f"baton_{name}", _TEXTS[name], ("policy",), registry=registry, buckets=self.BUCKETS
            )

        self.requests = counter("requests", "policy", "outcome")
        self.steps = counter("steps", "author", "accepted")
        self.tokens = counter("tokens", "worker")
        self.discarded = counter("discarded_tokens")
        self.judged = counter("judge_calls")
        self.prefill = counter("prefill_tokens")
        self.cached = counter("cached_tokens")
        self.passes = counter("large_passes")
        self.lost = counter("lost_calls", "worker")
        for worker in WORKERS:
            self.lost.labels(worker)
            self.tokens.labels(worker)
        self.latency = seconds("request_seconds")
        self.first_text = seconds("first_text_seconds")
        registry.register(_Processor())
        name = "live_requests"
        self.live = Gauge(f"baton_{name}", _TEXTS[name], registry=registry)

    @contextmanager
    def request(self, policy: str, response: ResponseAccumulator) -> Iterator[None]:
        """Count a request that lasts as long as the block, even if it is cancelled or fails."""
        error: BaseException | None = None
        response.start()
        self.live.inc()
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.live.dec()
            self._count(policy, response, response.outcome(error))

    def _count(self, policy: str, response: ResponseAccumulator, outcome: str) -> None:
        self.requests.labels(policy, outcome).inc()
        self.latency.labels(policy).observe(response.elapsed_s)
        if response.first_text_s is not None:
            self.first_text.labels(policy).observe(response.first_text_s)
        for step in response.steps:
            self.steps.labels(step.author, "true" if step.accepted else "false").inc()
        metrics = response.metrics
        self.tokens.labels("small").inc(metrics.small_tokens)
        self.tokens.labels("large").inc(metrics.large_tokens)
        self.discarded.inc(metrics.discarded_tokens)
        self.judged.inc(metrics.judge_calls)
        self.prefill.inc(max(0, metrics.prefill_tokens))
        self.cached.inc(metrics.cached_tokens)
        self.passes.inc(metrics.large_passes)
