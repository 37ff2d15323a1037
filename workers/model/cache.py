"""The key/value cache: one tensor for all layers and slots, allocated once.

Layout `[2 * layers, slots, key heads, capacity, head size]`, keys at 2l and values at 2l + 1, so
that the windows of a pass, the copy of a prefix and the gathering of an accepted path are one
operation for all layers. When a row leaves, its slot keeps the entries for a later common prefix.

One pass: `map_slots` says where its entries go, each layer calls `update`, and nothing drafted
counts as cached until `commit` names the accepted path. A rejected draft's entries lie beyond the
slot's length: later passes overwrite them, and until then the mask gives them no weight.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress
from math import prod
from operator import ne

import torch
from torch import Tensor

from orchestrator.errors import ConfigError
from workers.model.transfer import on_device

SLICE = 512  # tokens that are compared at once


def common_prefix(left: Sequence[int], right: Sequence[int], most: int) -> int:
    """Length of the common prefix, at most `most`; slices are compared in C."""
    most = min(most, len(left), len(right))
    for start in range(0, most, SLICE):
        ours, theirs = (ids[start : min(start + SLICE, most)] for ids in (left, right))
        if ours != theirs:
            return start + next(compress(range(SLICE), map(ne, ours, theirs)))
    return most


def zeros(shape: Sequence[int], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Zeros; on a CPU they take no memory before they are written, and then page by page."""
    size = prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or not size:
        return torch.zeros(shape, device=device, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"the cache needs {size / 1e9:.1f} GB, which the system does not give "
            f"({error.strerror}): take fewer rows or a smaller max_len"
        ) from None
    with suppress(AttributeError, OSError):  # elsewhere than on Linux, or without such pages
        # With huge pages the first token of a slot takes, and zeroes, 2 MB of each layer.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size).view(dtype).view(*shape)


APART = 1 << 17  # bytes a row and layer, from which each row is read where it lies

Cached = Tensor | Sequence[Tensor]
"""A layer's keys or values of a pass: [rows, heads, cached, size], or of each row by itself
[1, heads, its own cached, size]."""


class KVCache:
    """Preallocated keys and values: of each slot the first `lengths[slot]` tokens of `ids[slot]`.

    Entries beyond are not valid, but finite: an attention weight of 0 times a NaN would be a NaN.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        capacity: int,
        head_size: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (2 * layers, slots, heads, capacity, head_size)
        self.data = zeros(shape, device, dtype)
        self.slots, self.capacity = slots, capacity
        self.lengths = [0] * slots
        self.ids: list[list[int]] = [[] for _ in range(slots)]
        self.hidden_states: Tensor | None = None
        self._write: Sequence[Tensor] = ()
        self._read: Sequence[Tensor] = ()
        self._index: tuple[Tensor, Tensor] | None = None
        self._gather: Tensor | None = None
        self._apart: list[Sequence[Tensor]] = []  # of each row, by layer
        self._first = self._start = self._end = 0

    def add_hidden_states(self, width: int) -> None:
        """Allocate one more vector per token: `hidden_states` [slots, capacity, width]."""
        shape = (self.slots, self.capacity, width)
        self.hidden_states = zeros(shape, self.data.device, self.data.dtype)

    def add_layer(self) -> int:
        """Allocate one more layer, before anything is cached; returns its index."""
        layers, *rest = self.data.shape
        self.data = self.data.new_empty(0)  # a large cache has no room beside another
        self.data = zeros((layers + 2, *rest), self.data.device, self.data.dtype)
        return layers // 2

    def map_slots(
        self, slots: Sequence[int], starts: Sequence[int], positions: Tensor | None, n: int
    ) -> None:
        """Set the slot mapping of the next pass: row b writes n entries from `starts[b]`.

        `positions` [rows, n] are the same places as a tensor, needed for more than one row.
        """
        first, rows = slots[0], len(slots)
        self._first, self._start, self._end = first, starts[0], max(starts) + n
        self._index = self._gather = None
        self._apart = []
        if rows == 1:
            row = self.data.narrow(1, first, 1)
            self._write = row.narrow(3, starts[0], n).unbind(0)
            self._read = row.narrow(3, 0, self._end).unbind(0)
            return
        assert positions is not None
        chosen = on_device(slots, self.data.device)
        self._index = (chosen[:, None], positions)
        neighbours = list(slots) == list(range(first, first + rows))
        if self._reads_apart(starts, n, neighbours=neighbours):
            self._apart = [
                self.data.narrow(1, slot, 1).narrow(3, 0, start + n).unbind(0)
                for slot, start in zip(slots, starts, strict=True)
            ]
        elif neighbours:  # a view
            self._read = self.data[:, first : first + rows, :, : self._end].unbind(0)
        else:
            self._gather = chosen

    def _reads_apart(self, starts: Sequence[int], n: int, *, neighbours: bool) -> bool:
        """Whether a call for each row costs less than to copy scattered rows together, or to read
        the padding of ragged ones."""
        size = 2 * self.data.shape[2] * self.data.shape[4] * self.data.dtype.itemsize
        if self.data.device.type != "cpu" or self._end * size < APART:
            return False
        padded = self._end * len(starts)
        return not (neighbours and sum(starts) + n * len(starts) > 0.8 * padded)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Cached, Cached]:
        """Store a layer's [rows, heads, n, size]; returns all its keys and values of the rows."""
        k, v = 2 * layer, 2 * layer + 1
        if self._index is None:
            self._write[k].copy_(keys)
            self._write[v].copy_(values)
            return self._read[k], self._read[v]
        slots, positions = self._index
        self.data[k][slots, :, positions] = keys.transpose(1, 2)
        self.data[v][slots, :, positions] = values.transpose(1, 2)
        if self._apart:
            return [row[k] for row in self._apart], [row[v] for row in self._apart]
        if self._gather is None:
            return self._read[k], self._read[v]
        # By slot, the outermost place here: by an inner one torch copies all slots first.
        window = self.data[k : k + 2].transpose(0, 1)[:, :, :, : self._end]
        keys, values = window.index_select(0, self._gather).unbind(1)
        return keys, values

    def update_hidden_states(self, hidden_states: Tensor) -> None:
        """Store [rows, n, width] hidden states of the pass's tokens."""
        assert self.hidden_states is not None
        if self._index is None:
            self.hidden_states[self._first, self._start : self._end] = hidden_states[0]
        else:
            self.hidden_states[self._index] = hidden_states

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the accepted path of the last pass, ascending nodes from 0."""
        start, length = self.lengths[slot], len(path)
        if path[-1] != length - 1:  # a branch: gather its entries (out of place, then back)
            source = on_device(path, self.data.device) + start
            self.data[:, slot, :, start : start + length] = self.data[:, slot].index_select(
                2, source
            )
            if self.hidden_states is not None:
                self.hidden_states[slot, start : start + length] = self.hidden_states[slot, source]
        self.lengths[slot] = start + length

    def truncate(self, slot: int, ids: list[int], limit: int) -> int:
        """Keep the prefix that a slot shares with `ids`, at most `limit` tokens; return its length.

        The slot holds `ids` from now on: the list itself, which its owner extends.
        """
        shared = common_prefix(self.ids[slot], ids, self.lengths[slot])
        self.lengths[slot] = min(shared, limit)
        self.ids[slot] = ids
        return self.lengths[slot]

    def copy(self, source: int, slot: int, length: int) -> None:
        """Start `slot` with the first `length` tokens of another."""
        self.data[:, slot, :, :length] = self.data[:, source, :, :length]
        if self.hidden_states is not None:
            self.hidden_states[slot, :length] = self.hidden_states[source, :length]
        self.ids[slot] = self.ids[source][:length]
        self.lengths[slot] = length

    def evict(self, slot: int) -> None:
        """Forget the tokens of a slot, so that no later call starts from them."""
        self.ids[slot], self.lengths[slot] = [], 0

    def reset(self, slot: int) -> None:
        """Evict a slot and zero its memory, which may hold NaNs."""
        self.evict(slot)
        self.data[:, slot] = 0
        if self.hidden_states is not None:
            self.hidden_states[slot] = 0
