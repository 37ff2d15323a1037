"""The routers of this process, what they avoid, and where their calls are.

Serve pickles the module of a router class by value, with all that it holds: what that class shares
with its process must lie in another module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from weakref import WeakSet

ROUTERS: Final[WeakSet[Any]] = WeakSet()
"""One for each handle."""


def avoid_others(deployment: str, answering: Collection[str]) -> bool:
    """Rank the replicas that do not answer last; whether there are such. Where none answers, they
    rank as ever.

    Args:
        deployment: its name in Serve, of one application.
        answering: the tags of those that do.
    """
    silent = False
    for router in list(ROUTERS):
        if router._deployment_id.name == deployment:
            router.avoided = frozenset(router.replicas.difference(answering))
            silent |= bool(router.avoided)
    return silent


def note_taker(metadata: Any, replica: str | None) -> None:
    """Note to which replica a call was sent, beside what Serve knows of the call.

    Serve itself knows whether a call with one answer was accepted only once it has the answer.
    """
    metadata.replica = replica


def taker(response: Any) -> str | None:
    """The tag of the replica to which a call was sent; None while it waits for one.

    Args:
        response: what the handle returned for the call.
    """
    return getattr(response._request_metadata, "replica", None)
