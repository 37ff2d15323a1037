"""Results that are kept for some minutes, as long as they fit into a number of bytes.

A count of entries bounds nothing, because a caller decides how long each of them is. Most results
serve one request, so those that are older than a request may be are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import ParamSpec, TypeVar

from cachetools import TTLCache, cached

P = ParamSpec("P")
R = TypeVar("R")
ENTRY_BYTES = 1024  # about what an entry takes beside its result
KEPT_S = 300.0


def remembered(
    function: Callable[P, R], max_bytes: int, size: Callable[[R], int]
) -> Callable[P, R]:
    """`function`, which takes hashable arguments, with its latest results at hand.

    Args:
        max_bytes: how much the results and their arguments may take together. A result that alone
            takes more is not kept.
        size: bytes of a result and the arguments that led to it, about.
    """
    kept: TTLCache[Hashable, R] = TTLCache(
        max_bytes, KEPT_S, getsizeof=lambda result: size(result) + ENTRY_BYTES
    )
    return cached(kept, lock=Lock())(function)
