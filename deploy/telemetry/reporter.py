"""One replica's counts on their way out: into the service's sum, and onto Ray's own port.

Ray serves what its processes tell it at each node's metrics port, there as `ray_baton_...` with the
labels `deployment`, `replica` and `application`. A histogram is told by its sum and its count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import Metric

from deploy.telemetry.ledger import REFRESH_S, ClusterStore, Ledger, Series

log = logging.getLogger(__name__)


class Reporter:
    """Reports what `collect` gives, whenever it is told to.

    Made and used in a replica of Ray Serve, whose name and application it goes by.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        from ray import serve

        context = serve.get_replica_context()
        self.replica = context.replica_tag
        self.ledger = Ledger(ClusterStore(), context.app_name)
        self._collect = collect
        self._written: dict[Series, float] = {}
        self._at = 0.0
        self._exported: dict[Series, float] = {}
        self._exports: dict[str, Any] = {}
        self._busy = threading.Lock()

    def report(self) -> None:
        """Write down what has been counted. Blocks for a moment.

        Raises:
            Exception: the cluster's store cannot be reached.
        """
        with self._busy:
            families = list(self._collect())
            counts = counts_of(families)
            self._export(families)
            if counts != self._written or time.monotonic() > self._at + REFRESH_S:
                self.ledger.write(self.replica, counts)
                self._written, self._at = counts, time.monotonic()

    def try_report(self) -> None:
        """As `report`, where the next time will do as well."""
        try:
            self.report()
        except Exception as error:
            log.warning("counts were not written down: %s", type(error).__name__)

    def _export(self, families: Iterable[Metric]) -> None:
        from ray.serve import metrics

        for family in families:
            for sample in family.samples:
                if sample.name.endswith(("_bucket", "_created")):
                    continue
                kind = metrics.Gauge if family.type == "gauge" else metrics.Counter
                name = sample.name.removesuffix("_total")  # which Ray adds again
                export = self._exports.get(name)
                if export is None:
                    labels = tuple(sample.labels)
                    export = self._exports[name] = kind(name, family.documentation, labels)
                if kind is metrics.Gauge:
                    export.set(sample.value, sample.labels)
                else:
                    more = sample.value - self._exported.get(series(sample), 0.0)
                    if more > 0:
                        export.inc(more, sample.labels)
                        self._exported[series(sample)] = sample.value


def counts_of(families: Iterable[Metric]) -> dict[Series, float]:
    """The samples that only ever grow, those at zero left out."""
    return {
        series(sample): sample.value
        for family in families
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    }


def series(sample: Any) -> Series:
    return sample.name, tuple(sorted(sample.labels.items()))
