"""Freed memory goes back to the system."""

from __future__ import annotations

import os

from tests.workers.model.test_cache import resident
from workers.heap import give_back

SIZE = 60_000  # bytes of a block, below the size that the C library maps by itself


def test_freed_memory_goes_back() -> None:
    blocks = [os.urandom(SIZE) for _ in range(2000)]
    kept = blocks[-1]  # at the top of the heap: without the call all below it stays
    held = resident()
    blocks.clear()
    give_back()
    assert held - resident() > 1800 * SIZE
    assert len(kept) == SIZE
