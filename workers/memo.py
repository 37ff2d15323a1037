"""Caches that keep results for `KEPT_S` seconds, within a number of bytes.

The bound is in bytes because clients decide how large an entry is. Most results serve one request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import ParamSpec, TypeVar

from cachetools import TTLCache, cached

P = ParamSpec("P")
R = TypeVar("R")
ENTRY_BYTES = 1024  # estimate of an entry's overhead
KEPT_S = 300.0


def remembered(
    function: Callable[P, R], max_bytes: int, size: Callable[[R], int]
) -> Callable[P, R]:
    """Return `function` with a cache of at most `max_bytes`; its arguments must be hashable.

    `size` estimates the bytes of a result and its arguments.
    """
    kept: TTLCache[Hashable, R] = TTLCache(
        max_bytes, KEPT_S, getsizeof=lambda result: size(result) + ENTRY_BYTES
    )
    return cached(kept, lock=Lock())(function)
