"""The places of a pass's tokens: their positions, and which cached tokens each one sees.

Layout follows Miao et al. (SpecInfer, 2305.09781): node i of a tree attends to the committed
prefix, its ancestors and itself; its position is the length of the prefix plus its *depth*. A
layer with a sliding window sees of these what is near enough by *position*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from workers.model.config import ModelConfig
from workers.model.families import FULL, AttentionKind
from workers.model.transfer import on_device
from workers.model.tree import Tree

CHUNK = 512  # most tokens of one row in one pass

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines [1 or rows, 1, n, head size] for `rotate`: the sines' first half is negated."""

View = tuple[Rotary | None, Tensor | None]
"""What a layer needs of a pass: the rotary table of its tokens (None: it does not rotate), and
their additive mask [rows or 1, 1, n, cached] (None: causal); where a key has several query heads,
that of n > 1 tokens is repeated for each of them, once a pass and not in every layer."""


class Placement:
    """Rotary tables and masks for a model's kinds of attention.

    `config`: for its ropes; `capacity`: cache entries of a slot; `groups`: query heads of a key.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        groups: int,
        kinds: Iterable[AttentionKind],
    ) -> None:
        self.config, self.capacity, self.groups = config, capacity, groups
        self.device, self.dtype = device, dtype
        self._columns = torch.arange(capacity, device=device)
        self._kinds = tuple(dict.fromkeys(kinds))
        self._tables: dict[str, Rotary] = {}  # by the rope's name
        self._causal: dict[int | None, Tensor] = {}  # by window
        for kind in self._kinds:
            self._prepare(kind)

    def _prepare(self, kind: AttentionKind) -> None:
        if kind.rope is not None and kind.rope not in self._tables:
            # No text goes beyond the limit; beyond it such a table would change as a whole.
            limit = self.config.rope_limit or self.capacity
            places = self._columns.clamp(max=limit - 1)[None]
            self._tables[kind.rope] = rotary_table(self.config, places, self.dtype, kind.rope)
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

        Row b's n new tokens, padding at the end included, begin at the cache entry `starts[b]`,
        after `skips[b]` nodes of its tree.
        """
        chains = all(tree.is_chain for tree in trees)
        rotary: dict[str | None, Rotary | None] = {None: None}
        if len(trees) == 1 and chains and n <= min(CHUNK, self.capacity):
            entries, start = None, starts[0]
            for rope, (cosines, sines) in self._tables.items():
                rotary[rope] = cosines.narrow(2, start, n), sines.narrow(2, start, n)
            masks = {window: self._chain_mask(start, n, window) for window in self._causal}
        else:
            entries, positions, masks = self._tree_masks(starts, skips, trees, n, chains)
            for rope, (cosines, sines) in self._tables.items():
                chosen = cosines[0, 0][positions], sines[0, 0][positions]
                rotary[rope] = chosen[0].unsqueeze(1), chosen[1].unsqueeze(1)
        if self.groups > 1 and n > 1:
            masks = {
                window: None if mask is None else mask.repeat(1, 1, self.groups, 1)
                for window, mask in masks.items()
            }
        return entries, {kind: (rotary[kind.rope], masks[kind.window]) for kind in self._kinds}

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill_(~visible, -torch.inf)

    def _chain_mask(self, start: int, n: int, window: int | None) -> Tensor | None:
        """Mask [1, 1, n, start + n] of n chained tokens after `start` cached ones."""
        all_near = window is None or start + n <= window
        if all_near and (n == 1 or start == 0):
            return None  # sdpa takes n > 1 queries as the causal square from position 0
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
    ) -> tuple[Tensor, Tensor, dict[int | None, Tensor | None]]:
        """Entries and positions [rows, n], and masks [rows, 1, n, end] by window, of any trees."""
        end = max(starts) + n
        near = {window for window in self._causal if window is None or end <= window}
        start = on_device(starts, self.device)[:, None]
        entries, columns = start + self._columns[:n], self._columns[:end]
        if chains:
            positions, seen = entries, columns[None]
            visible = columns <= entries[:, :, None]
        else:
            base = start - on_device(skips, self.device)[:, None]  # committed prefix
            node = columns - base  # of each column; negative in the prefix
            nodes = max(skips) + n
            depths, ancestors = _depths_and_ancestors(trees, skips, n)
            fresh = [depth[done : done + n] for depth, done in zip(depths, skips, strict=True)]
            positions = base + on_device(fresh, self.device)
            inside = node.clamp(0, 8 * ((nodes + 7) // 8) - 1)
            in_tree = on_device(ancestors, self.device).gather(2, inside[:, None].expand(-1, n, -1))
            visible = (in_tree > 0) & (node < nodes)[:, None] | (node < 0)[:, None]
            seen = columns[None]
            if len(near) < len(self._causal):  # a window looks at positions
                depth = on_device(depths, self.device).gather(1, node.clamp(0, nodes - 1))
                seen = torch.where(node < 0, columns, base + depth)
        whole = self._additive(visible)[:, None] if near else None
        masks: dict[int | None, Tensor | None] = dict.fromkeys(near, whole)
        for window in self._causal.keys() - near:
            assert window is not None
            within = seen[:, None] > positions[:, :, None] - window
            masks[window] = self._additive(visible & within)[:, None]
        return entries, positions, masks


def _depths_and_ancestors(
    trees: Sequence[Tree], skips: Sequence[int], n: int
) -> tuple[list[list[int]], Tensor]:
    """Return depths, and new nodes' ancestors [rows, n, nodes or more], of equally padded trees.

    A node of the padding attends to itself, for a finite softmax.
    """
    nodes = max(skips) + n
    width = (nodes + 7) // 8
    depths, packed = [], bytearray()
    for tree, done in zip(trees, skips, strict=True):
        depth, bits = tree.ancestor_masks()
        depths.append(depth + [0] * (nodes - len(tree)))
        padding = range(len(tree), done + n)
        for number in (*bits[done:], *(1 << node for node in padding)):
            packed += number.to_bytes(width, "little")
    rows = np.frombuffer(packed, np.uint8).reshape(len(trees), n, width)
    return depths, torch.from_numpy(np.unpackbits(rows, axis=-1, bitorder="little"))


def rotary_table(
    config: ModelConfig, places: Tensor, dtype: torch.dtype, rope: str = FULL
) -> Rotary:
    """The table for positions [rows, n]; `rope` names one of several."""
    steps, scale = frequencies(config, rope)
    angles = places[..., None].float() * steps.to(places.device)
    cosines, sines = (
        (scale * part).to(dtype).unsqueeze(1) for part in (angles.cos(), angles.sin())
    )
    return torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)


def frequencies(config: ModelConfig, rope: str = FULL) -> tuple[Tensor, float]:
    """Radians a position of each pair [head size / 2], and what cosines and sines are scaled by."""
    parameters, size = config.rope_parameters, config.head_dim
    if config.family.ropes_by_type:
        parameters = parameters[rope]
    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        return 1 / parameters["rope_theta"] ** exponents, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # slow, and few need it

    described = SimpleNamespace(
        rope_parameters=dict(parameters),
        standardize_rope_params=lambda: None,
        head_dim=size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
    )
    steps, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](described, torch.device("cpu"))
    return steps, float(scale)
