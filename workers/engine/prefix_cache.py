"""Which slot of the cache a request gets, and how much of its prompt is cached there already."""

from __future__ import annotations

from collections.abc import Sequence

from workers.model.cache import common_prefix
from workers.speculation.decode import Decoder


class PrefixCache:
    """The slots of a decoder's cache, each of at most one request at a time.

    A released slot keeps its tokens for a later prompt of the same owner. Another owner's prompt
    never meets them: how much of it is cached would tell what they are.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._cache = decoder, decoder.target.cache
        self._free = dict.fromkeys(range(self._cache.slots))  # least recently used first
        self._owners = [""] * self._cache.slots
        self.copied = 0  # tokens, from slot to slot

    def allocate(self, ids: list[int], num_logits: int, owner: str = "") -> tuple[int, int]:
        """A slot for a prompt, and how many of its tokens are cached there, less `num_logits`.

        That is the owner's slot that holds most of the prompt. If it is in use, or holds a much
        longer text, the common part is copied to the least recently used free slot.
        """
        shared = [
            self._shared_with(slot, ids) if self._owners[slot] == owner else 0
            for slot in range(self._cache.slots)
        ]
        best = max(range(self._cache.slots), key=shared.__getitem__)
        slot = best
        if best not in self._free or self._cache.lengths[best] > 2 * shared[best]:
            slot = next(iter(self._free))
        if slot != best and shared[best] > shared[slot]:
            self._decoder.copy(best, slot, shared[best])
            self.copied += shared[best]
        elif self._owners[slot] != owner:
            self._decoder.copy(slot, slot, 0)  # forget all, in the methods' caches as well
        self._owners[slot] = owner
        del self._free[slot]
        return slot, self._cache.truncate(slot, ids, len(ids) - num_logits)

    @property
    def is_full(self) -> bool:
        """Whether all slots are in use."""
        return not self._free

    def release(self, slot: int, kept_length: int | None = None) -> None:
        """The request is over; its slot keeps the first `kept_length` tokens (None: all)."""
        if kept_length is not None:
            self._cache.lengths[slot] = min(self._cache.lengths[slot], kept_length)
        self._free[slot] = None

    def _shared_with(self, slot: int, ids: Sequence[int]) -> int:
        return common_prefix(self._cache.ids[slot], ids, self._cache.lengths[slot])
