"""Where replicas of the orchestrator meet: the port of the store, and what may go wrong with it.

Five kinds of things, each with the law that makes it safe to share:

    documents   written once, never changed: what a version says today it says for ever
    pointers    small mutable values; all of them change together, under one revision
    streams     events in the order they came, the oldest trimmed away
    totals      sums that many add to
    values      records with a time to live

Documents and pointers are the *configuration*. It changes by `commit` alone: all of a commit
happens or nothing, and never on top of something that its author had not seen. `state` reads all
pointers at one moment, and what they name never changes, so whoever follows them from one `state`
sees one configuration and never a mix of two.

Names are paths of `[A-Za-z0-9._@:-]` parts, such as `policy/specreason/3`. Every call may raise
StoreUnavailable, and does so within `PATIENCE_S` rather than wait for a store that is gone. A call
that failed may still have been carried out: events are delivered at least once, and carry an id by
which their reader knows them again.

`orchestrator.state.memory` and `orchestrator.state.redis` are the two stores;
`tests/orchestrator/test_store.py` holds both to what stands here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from orchestrator.errors import InvalidRequest

PATIENCE_S: Final = 1.0
"""Seconds after which a store that does not answer counts as away."""
DOCUMENT_BYTES: Final = 64 << 10
"""The largest document, pointer or event."""
AUDITED: Final = 10_000
"""Commits whose audit entries are kept."""
AUDIT: Final = "audit"
"""The stream of audit entries, one per commit."""

_NAME: Final = re.compile(r"[A-Za-z0-9._@:-]+(/[A-Za-z0-9._@:-]+)*")


@dataclass(frozen=True, slots=True)
class State:
    """All pointers at one moment.

    `revision` names the moment: equal revisions, equal pointers. It is "" in a store that has
    never seen a commit, and also in one that has been wiped.
    """

    revision: str = ""
    pointers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """A pointer from what its mover saw to what it shall be; None where there is no pointer."""

    pointer: str
    seen: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a stream. `at` is its place: greater than that of every event before it."""

    at: str
    event: bytes


class Store(Protocol):
    """The port."""

    async def commit(
        self,
        *,
        create: Mapping[str, bytes] | None = None,
        move: Sequence[Move] = (),
        audit: bytes,
    ) -> str:
        """Create documents and move pointers, all or none, and note it in the audit stream.

        Returns:
            The revision that this made.

        Raises:
            Conflict: a document of that name exists, or a pointer is not where it was seen.
        """
        ...

    async def state(self, known: str | None = None) -> State | None:
        """All pointers at one moment; None where the revision is still `known`."""
        ...

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        """Documents by name, in the order asked; None for one that does not exist."""
        ...

    async def changed(self, known: str, patience_s: float) -> None:
        """Return when there may be another revision than `known`, at the latest after `patience_s`.

        A hint and no more: it may come for nothing and it may be missed, so whoever waits looks at
        `state` afterwards in any case. Connections that broke are made anew by the next call.
        """
        ...

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        """Add events to the end of a stream, of which at least the newest `keep` stay."""
        ...

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[Entry]:
        """At most `count` events that follow the place `after`, oldest first; "" is the start."""
        ...

    async def newest(self, stream: str, count: int) -> list[Entry]:
        """The last `count` events, newest first."""
        ...

    async def add(self, total: str, amounts: Mapping[str, float]) -> None:
        """Add to the fields of a total; a field that does not exist is 0."""
        ...

    async def totals(self, total: str) -> dict[str, float]:
        """The fields of a total; empty for one that nobody added to."""
        ...

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Keep a value for `ttl_s` seconds; a store that is short of room may drop it earlier."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The value of that name, unless its time is over."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...


def check(*names: str, values: Sequence[bytes] = ()) -> None:
    """Refuse what no store shall hold.

    Raises:
        InvalidRequest: a name is no path of parts, or a value is too large.
    """
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > 512:
            raise InvalidRequest(f"{name[:64]!r} is no name for the store")
    for value in values:
        if len(value) > DOCUMENT_BYTES:
            raise InvalidRequest(f"{len(value)} bytes are too many: {DOCUMENT_BYTES} at most")


def check_commit(create: Mapping[str, bytes], move: Sequence[Move], audit: bytes) -> None:
    """Refuse a commit that holds what no store shall hold.

    Raises:
        InvalidRequest: as `check`.
    """
    values = (*create.values(), *(one.new or b"" for one in move), audit)
    check(*create, *(one.pointer for one in move), values=values)
