"""The routers of this process, the replicas they avoid, and which replica took a call.

Serve pickles the module of a router class by value, with its globals. So what that class shares
with its process must be in another module, here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from weakref import WeakSet

ROUTERS: Final[WeakSet[Any]] = WeakSet()
"""One router for each handle."""


def avoid_others(deployment: str, answering: Collection[str]) -> bool:
    """Rank the replicas that are not `answering` (tags) last; return whether there are any."""
    silent = False
    for router in list(ROUTERS):
        if router._deployment_id.name == deployment:
            router.avoided = frozenset(router.replicas.difference(answering))
            silent |= bool(router.avoided)
    return silent


def taker(response: Any) -> str | None:
    """Return the tag of the replica that took a handle's call; None while it waits for one.

    `ReplicaRouter` records it in Serve's metadata of the call, since Serve itself learns only from
    the answer whether a unary call was accepted.
    """
    return getattr(response._request_metadata, "replica", None)
