"""Where the tokens of a pass stand: their positions, and which cached tokens each one sees.

Layout follows Miao et al. (SpecInfer, 2305.09781): node i of a tree attends to the committed
prefix, its ancestors and itself; its position is the length of the prefix plus its *depth*. A
layer with a sliding window sees of these what is near enough by *position*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.model.families import FAMILIES, FULL, AttentionKind, longest_text
from workers.model.tree import Tree

CHUNK = 512  # most tokens of one row in one pass

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines [1 or rows, 1, n, head size] for `rotate`: the sines' first half is negated."""

View = tuple[Rotary | None, Tensor | None]
"""What a layer needs of a pass: the rotary table of its tokens (None: it does not rotate), and
their additive mask [rows or 1, 1, n, cached] (None: causal)."""


class Placement:
    """Rotary tables and masks for a model's kinds of attention.

    Args:
        rotary_emb: the module of transformers' model.
        capacity: cache entries of a slot.
    """

    def __init__(
        self, rotary_emb: Any, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.rotary_emb, self.capacity = rotary_emb, capacity
        self.device, self.dtype = device, dtype
        self._columns = torch.arange(capacity, device=device)
        self._kinds: list[AttentionKind] = []
        self._tables: dict[str, Rotary] = {}  # by the rope's name
        self._causal: dict[int | None, Tensor] = {}  # by window

    def add(self, kind: AttentionKind) -> None:
        """Prepare a kind of attention, before the first pass."""
        if kind in self._kinds:
            return
        self._kinds.append(kind)
        if kind.rope is not None and kind.rope not in self._tables:
            # Nobody stands beyond the longest text, where some tables would change as a whole.
            places = self._columns.clamp(max=longest_text(self.rotary_emb.config) - 1)
            self._tables[kind.rope] = rotary_table(
                self.rotary_emb, places[None], self.dtype, kind.rope
            )
        if kind.window not in self._causal:
            # Row i is the causal mask of the i-th of n new tokens; a window that begins further
            # left has a longer prefix, so a chain's mask is a view of this one.
            chunk = min(CHUNK, self.capacity)
            offset = torch.arange(self.capacity + chunk, device=self.device) - self.capacity
            row = torch.arange(chunk, device=self.device)[:, None]
            visible = (offset <= row) & (offset > row - (kind.window or 2 * self.capacity))
            self._causal[kind.window] = self._additive(visible)

    def __call__(
        self, starts: Sequence[int], skips: Sequence[int], trees: Sequence[Tree], n: int
    ) -> tuple[Tensor | None, dict[AttentionKind, View]]:
        """Cache entries [rows, n] of a pass's tokens (None: one row, from its start on), and views.

        Args:
            starts: of each row, the cache entry of its first new token.
            skips: how many first nodes of each tree lie before that.
            n: new tokens of a row, padding at the end included.
        """
        end = max(starts) + n
        # A window that holds everything is none.
        windows = {w: w if w is not None and w < end else None for w in self._causal}
        chains = all(tree.is_chain for tree in trees)
        entries, rotary = None, {}
        if len(trees) == 1 and chains and n <= CHUNK and n <= self.capacity:
            start = starts[0]
            for name, (cosines, sines) in self._tables.items():
                rotary[name] = cosines.narrow(2, start, n), sines.narrow(2, start, n)
            masks = {window: self._chain_mask(start, n, window) for window in windows.values()}
        else:
            entries, positions, masks = self._tree_masks(
                starts, skips, trees, n, chains, {*windows.values()}
            )
            for name, (cosines, sines) in self._tables.items():
                rotary[name] = (
                    cosines[0, 0][positions].unsqueeze(1), sines[0, 0][positions].unsqueeze(1)
                )  # fmt: skip
        return entries, {
            kind: (rotary[kind.rope] if kind.rope else None, masks[windows[kind.window]])
            for kind in self._kinds
        }

    def _additive(self, visible: Tensor) -> Tensor:
        """0 where visible, else minus infinity."""
        mask = torch.zeros(visible.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill_(~visible, -torch.inf)

    def _chain_mask(self, start: int, n: int, window: int | None) -> Tensor | None:
        """Mask [1, 1, n, start + n] of n chained tokens behind `start` cached ones."""
        # Without a mask, sdpa takes n > 1 queries as the causal square from position 0.
        if window is None and (n == 1 or start == 0):
            return None
        first = self.capacity - start
        view = self._causal[window][:n, first : first + start + n][None, None]
        # CUDA's kernels need aligned rows, which a window at any place does not give.
        return view if view.device.type == "cpu" else view.contiguous()

    def _tree_masks(
        self,
        starts: Sequence[int],
        skips: Sequence[int],
        trees: Sequence[Tree],
        n: int,
        chains: bool,
        windows: set[int | None],
    ) -> tuple[Tensor, Tensor, dict[int | None, Tensor | None]]:
        """Cache entries and positions [rows, n], and masks [rows, 1, n, end], of any trees."""
        start = torch.tensor(starts, device=self.device)[:, None]
        entries = start + self._columns[:n]
        columns = self._columns[: max(starts) + n]
        if chains:
            positions, seen = entries, columns[None]
            visible = columns <= entries[:, :, None]
        else:
            base = start - torch.tensor(skips, device=self.device)[:, None]  # committed prefix
            depths, ancestors = self._ancestors(skips, trees, n)
            nodes = depths.shape[1]
            node = columns - base  # of each column; negative in the prefix
            inside = node.clamp(0, nodes - 1)
            fresh = torch.tensor(skips, device=self.device)[:, None] + self._columns[:n]
            positions = base + depths.gather(1, fresh)
            seen = torch.where(node < 0, columns, base + depths.gather(1, inside))
            in_tree = ancestors.gather(2, inside[:, None].expand(-1, n, -1)) > 0
            visible = in_tree & (node < nodes)[:, None] | (node < 0)[:, None]
        masks: dict[int | None, Tensor | None] = {}
        for window in windows:
            near = visible
            if window is not None:
                near = visible & (seen[:, None] > positions[:, :, None] - window)
            masks[window] = self._additive(near)[:, None]
        return entries, positions, masks

    def _ancestors(
        self, skips: Sequence[int], trees: Sequence[Tree], n: int
    ) -> tuple[Tensor, Tensor]:
        """Depths [rows, nodes], and the ancestors [rows, n, nodes or more] of the new ones."""
        nodes = max(skips) + n
        width = (nodes + 7) // 8
        depths, packed = [], bytearray()
        for tree, done in zip(trees, skips, strict=True):
            depth, bits = tree.ancestor_masks()
            padding = range(len(tree), done + n)  # attends to itself, for a finite softmax
            depths.append(depth + [0] * (nodes - len(tree)))
            for number in (*bits[done:], *(1 << node for node in padding)):
                packed += number.to_bytes(width, "little")
        rows = np.frombuffer(packed, np.uint8).reshape(len(trees), n, width)
        ancestors = torch.from_numpy(np.unpackbits(rows, axis=-1, bitorder="little"))
        return torch.tensor(depths, device=self.device), ancestors.to(self.device)


def rotary_table(rotary_emb: Any, places: Tensor, dtype: torch.dtype, rope: str = FULL) -> Rotary:
    """The table of transformers' module for positions [rows, n]; `rope` names one of several."""
    probe = torch.zeros(1, device=places.device, dtype=dtype)
    family = FAMILIES[rotary_emb.config.model_type]
    named = {"layer_type": rope} if family.ropes_by_type else {}
    cosines, sines = rotary_emb(probe, places, **named)
    left, right = sines.chunk(2, -1)
    return cosines.unsqueeze(1), torch.cat((-left, right), -1).unsqueeze(1)
