"""What every replica has counted, kept in the cluster's own store, so that a sum outlives them.

A counter of the service is the sum over all replicas there ever were: a replica that dies takes
nothing away, and whichever replica is asked says the same. So each replica writes its counts under
its own name into the key-value store of Ray's control plane (the one that Serve keeps its own state
in: it survives every replica, and a restart of the head where that is fault-tolerant), and whoever
is asked adds up what stands there. Replicas long gone are folded into one entry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

Series = tuple[str, tuple[tuple[str, str], ...]]
"""One time series: the sample's name, and its labels in order."""
Counts = Mapping[Series, float]

REFRESH_S: Final = 300.0  # a replica writes at least this often, also where nothing changed
DEAD_S: Final = 3600.0  # one that has not written for so long is gone, whatever its clock says
NAMESPACE: Final = b"baton-metrics"


class Store(Protocol):
    """Bytes by name, for all processes of the cluster. Calls block; they may raise."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, *, overwrite: bool = True) -> bool:
        """Whether the key held a value before; without `overwrite` that value stays."""
        ...

    def delete(self, key: str) -> None: ...

    def keys(self, prefix: str) -> list[str]: ...


class ClusterStore:
    """The key-value store of Ray's control plane (GCS), of which this process is a client."""

    def __init__(self) -> None:
        from ray.experimental import internal_kv

        self._kv = internal_kv

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._kv._internal_kv_get(key, namespace=NAMESPACE)
        return found

    def put(self, key: str, value: bytes, *, overwrite: bool = True) -> bool:
        return bool(self._kv._internal_kv_put(key, value, overwrite, namespace=NAMESPACE))

    def delete(self, key: str) -> None:
        self._kv._internal_kv_del(key, namespace=NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        return [key.decode() for key in self._kv._internal_kv_list(prefix, namespace=NAMESPACE)]


class Ledger:
    """The counts of one application's replicas.

    Args:
        app: the application's name; applications do not see each other's counts.
        now: seconds since 1970.
    """

    def __init__(self, store: Store, app: str, *, now: Any = time.time) -> None:
        self._store, self._now = store, now
        root = f"{quote(app, safe='')}/"
        self._live, self._gone, self._lock = f"{root}live/", f"{root}gone", f"{root}lock"

    def write(self, replica: str, counts: Counts) -> None:
        """Replace what stands under this replica's name; `counts` never fall."""
        self._store.put(self._live + replica, _page(counts, at=self._now()))

    def total(self) -> dict[Series, float]:
        """The sum over all replicas there ever were.

        Never less than any total that was read before, wherever that was.
        """
        pages: dict[str, dict[str, Any]] = {}
        for key in self._store.keys(self._live):
            if (page := self._store.get(key)) is not None:
                pages[key.removeprefix(self._live)] = json.loads(page)
        # Read last: a page that is folded in between is found there, and named there.
        gone = self._read_gone()
        left = [name for name in gone["folded"] if pages.pop(name, None) is not None]
        total: dict[Series, float] = {}
        for counted in (gone, *pages.values()):
            _add(total, counted)
        dead = [name for name, page in pages.items() if page["at"] < self._now() - DEAD_S]
        if dead or left:
            self._fold(dead)
        return total

    def _fold(self, dead: Iterable[str]) -> None:
        """Add the pages of replicas long gone to one page, and drop them.

        The one page names those it holds until the next folding, so that breaking off anywhere
        counts nobody twice and forgets nobody.
        """
        if self._store.put(self._lock, str(self._now()).encode(), overwrite=False):
            since = float(self._store.get(self._lock) or 0)
            if since < self._now() - DEAD_S:  # whoever held it has died over it
                self._store.delete(self._lock)
            return
        try:
            gone = self._read_gone()
            for replica in gone["folded"]:
                self._store.delete(self._live + replica)
            sums: dict[Series, float] = {}
            folded = []
            _add(sums, gone)
            for replica in set(dead) - set(gone["folded"]):
                if (page := self._store.get(self._live + replica)) is not None:
                    _add(sums, json.loads(page))
                    folded.append(replica)
            self._store.put(self._gone, _page(sums, folded=folded))
            for replica in folded:
                self._store.delete(self._live + replica)
        finally:
            self._store.delete(self._lock)

    def _read_gone(self) -> dict[str, Any]:
        page = self._store.get(self._gone)
        return {"counts": [], "folded": []} if page is None else json.loads(page)


def _page(counts: Counts, **more: Any) -> bytes:
    rows = [[name, labels, value] for (name, labels), value in counts.items()]
    return json.dumps({"counts": rows, **more}, separators=(",", ":")).encode()


def _add(total: dict[Series, float], page: Mapping[str, Any]) -> None:
    for name, labels, value in page["counts"]:
        key = name, tuple((label, text) for label, text in labels)
        total[key] = total.get(key, 0.0) + value
