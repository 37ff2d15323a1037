"""The routers of this process, and what they avoid.

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
    """Rank the replicas that do not answer last; whether there are such.

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
