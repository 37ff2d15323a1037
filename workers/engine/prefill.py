"""Which prompts are prefilled together: one pass reads the weights once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

READING = 48
"""Padding tokens whose attention costs a CPU about one more read of the weights; products pass over
them. A GPU takes more."""


def fitting(sizes: Sequence[tuple[int, int]], most: int, capacity: int) -> list[int]:
    """Return the indices of the prompts that share a pass: the first one, and those whose padding
    costs no more than a separate pass.

    Args:
        sizes: of each prompt the tokens of its next chunk, and those cached before.
        most: tokens of a pass, padding included, unless the first alone has more.
        capacity: cache entries of a slot, which the padding takes too.
    """
    chosen: list[int] = []
    padded = longest = deepest = 0
    for place, (chunk, cached) in enumerate(sizes):
        n, before = max(longest, chunk), max(deepest, cached)
        tokens = (len(chosen) + 1) * n
        fits = tokens <= most and tokens - padded - chunk <= READING and before + n <= capacity
        if chosen and not fits:
            continue
        chosen.append(place)
        padded, longest, deepest = tokens, n, before
    return chosen
