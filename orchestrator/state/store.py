"""The interface of the store that replicas of the orchestrator share.

It has four kinds of data, each with the rule that makes it safe to share:

    documents   written once, never changed: a version means the same for ever
    pointers    small mutable values; all of them change together, under one revision
    streams     events in order of arrival, the oldest trimmed away
    values      records with a time to live

Documents and pointers are the *configuration*. Only `commit` changes it: a commit happens whole or
not at all, and only if the revision is still the one that the caller planned it on. `state` reads
all pointers at one moment, and the documents that they name never change. So a reader that starts
from one `state` sees one configuration, never a mix of two.

Names are paths, such as `policy/specreason/3`; callers make them of parts that they have checked.
Every call may raise StoreUnavailable, and does so within `TIMEOUT_S` if the store is down. A call
that failed may still have been carried out: events are delivered at least once, with an id by which
readers drop duplicates.

`orchestrator.state.memory` and `orchestrator.state.redis` are the two implementations;
`tests/orchestrator/state/test_store.py` tests both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from orchestrator.errors import Conflict, InvalidRequest

TIMEOUT_S: Final = 1.0
"""Seconds after which a store that does not answer counts as down."""
DOCUMENT_BYTES: Final = 64 << 10
"""The largest document, pointer or event."""
AUDIT_ENTRIES: Final = 10_000
"""The most audit entries that are kept."""
AUDIT: Final = "audit"
"""The stream of audit entries, one for each commit."""

_TRIES: Final = 20  # of a change, while other changes come first
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreState:
    """All pointers at one moment.

    `revision` identifies the moment: equal revisions, equal pointers. It is "" in a store without
    a commit, and also in one that has been wiped.
    """

    revision: str = ""
    pointers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """A change of the configuration, with its audit entry: new values of pointers (an empty one
    removes the pointer), and documents to create.

    Raises:
        InvalidRequest: one of them is too large.
    """

    audit: bytes
    pointers: Mapping[str, bytes] = field(default_factory=dict)
    create: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_size(self.audit, *self.pointers.values(), *self.create.values())


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An event of a stream. `at` is its position, greater than that of every earlier event: the
    store's time of arrival in ms since 1970, and a number."""

    at: str
    event: bytes

    @property
    def time(self) -> float:
        """The time of arrival by the store's clock, in seconds since 1970."""
        return int(self.at.partition("-")[0]) / 1000


class Store(Protocol):
    async def commit(self, known: str, commit: Commit) -> str:
        """Carry out all of a commit if the revision is still `known`; return the new revision.

        Raises:
            Conflict: it is another revision, or a document of that name exists.
        """
        ...

    async def state(self) -> StoreState:
        """Return all pointers at one moment."""
        ...

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        """Return documents in the order of the names; None for one that does not exist."""
        ...

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        """Add events to the end of a stream, which keeps at least its newest `keep`."""
        ...

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[StreamEntry]:
        """Return at most `count` events after the position `after`, oldest first; "": the start."""
        ...

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        """Return the last `count` events, newest first."""
        ...

    async def drop(self, *streams: str) -> None:
        """Delete all events of these streams."""
        ...

    async def time(self) -> float:
        """Return the store's clock, in seconds since 1970; it never goes back.

        Times of different machines are comparable only by it, since their clocks may differ.
        """
        ...

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Keep a value for `ttl_s` seconds; a store short of memory may evict it earlier."""
        ...

    async def get(self, name: str) -> bytes | None:
        """Return the value of that name; None if there is none, or it has expired."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


async def change(store: Store, plan: Callable[[StoreState], Awaitable[tuple[Commit, T]]]) -> T:
    """Commit what `plan` makes of the pointers, again if another change came between.

    Raises:
        Conflict: others always came first, or `plan` raises it.
    """
    for _ in range(_TRIES):
        state = await store.state()
        commit, made = await plan(state)
        with suppress(Conflict):
            await store.commit(state.revision, commit)
            return made
    raise Conflict("too many change the configuration at the same time; try again")


def check_size(*values: bytes) -> None:
    """Check documents, pointers or events before they go to a store.

    Raises:
        InvalidRequest: one is too large.
    """
    for value in values:
        if len(value) > DOCUMENT_BYTES:
            raise InvalidRequest(f"{len(value)} bytes are too many: {DOCUMENT_BYTES} at most")
