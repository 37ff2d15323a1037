"""Skips and counts foreign entries: what other programs or damage left in the store."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter
from pydantic_core import from_json

log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000  # entries that were counted


def json_object(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON object that an answer may contain; return None for anything else."""
    try:
        value = from_json(data, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)  # 1e999 is infinite, too
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class ForeignEntries:
    """Counts skipped entries, each once, and logs each place once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seen: LRUCache[tuple[str, str], None] = LRUCache(_REMEMBERED)
        self._named: LRUCache[str, None] = LRUCache(_REMEMBERED)
        self._count = Counter(
            "baton_store_foreign",
            "Foreign entries in the store that were skipped.",
            ("kind",),
            registry=registry,
        )

    def skip(self, place: str, at: str = "") -> None:
        """Count the entry at the position `at` of a stream, or the value of this name."""
        if (place, at) in self._seen:
            return
        self._seen[place, at] = None
        self._count.labels(place.partition("/")[0]).inc()
        if place not in self._named:
            self._named[place] = None
            log.warning("%s holds foreign entries: they are skipped", place)
