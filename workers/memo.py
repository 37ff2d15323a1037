"""Results that are kept for as long as they fit into a number of bytes.

Counting entries bounds nothing where a caller decides how long each of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import Lock
from typing import ParamSpec, TypeVar

from cachetools import LRUCache

P = ParamSpec("P")
R = TypeVar("R")
ENTRY_BYTES = 1024
"""What an entry takes beside what it holds, about."""


def remembered(
    function: Callable[P, R], max_bytes: int, size: Callable[[R], int]
) -> Callable[P, R]:
    """`function`, which takes hashable positional arguments, with its latest results at hand.

    Args:
        max_bytes: how much the results and their arguments may take together. A result that alone
            takes more is not kept.
        size: bytes of a result and the arguments that led to it, about.
    """
    kept: LRUCache[Hashable, tuple[R, int]] = LRUCache(max_bytes, getsizeof=lambda one: one[1])
    lock = Lock()

    def call(*args: P.args, **named: P.kwargs) -> R:
        assert not named
        with lock:
            found = kept.get(args)
        if found is None:
            result = function(*args)  # type: ignore[call-arg]
            found = result, size(result) + ENTRY_BYTES
            with lock, suppress(ValueError):  # too large to be kept
                kept[args] = found
        return found[0]

    return call
