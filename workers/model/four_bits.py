"""Weights in 4 bits by groups, for torch's own product on CPUs.

A group of 32 weights of a row shares a step and a middle, both bfloat16: a weight is its whole
number from 0 to 15, less 8, times the step, plus the middle. The product reads 5 bits a weight and
sums in float32, one input after the other, so a token's output depends on no other token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32
_STEPS: Final = (15, 14, 13, 16)
"""Into how many steps a group's range is divided; what leaves the smallest squared error counts.
Fewer than 15 find the grid of a weight that had 4 bits before; more cut off both ends."""
_BLOCK: Final = 1 << 18  # weights that are converted at a time, so that they stay in the cache


def fits(inputs: int, outputs: int) -> bool:
    """Whether the product takes a weight of that shape."""
    return inputs % GROUP == 0 and outputs % 16 == 0


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers [outputs, inputs], and each group's step and middle [groups, outputs, 2]."""
    groups = weight.reshape(-1, GROUP)
    whole = torch.empty(groups.shape, dtype=torch.int32)
    grid = torch.empty(len(groups), 2, dtype=torch.bfloat16)
    for block in blocks(groups):
        whole[block], grid[block] = _quantize_groups(groups[block].float())
    grid = grid.view(len(weight), -1, 2).transpose(0, 1)
    return whole.view(weight.shape), grid.contiguous()


def _quantize_groups(groups: Tensor) -> tuple[Tensor, Tensor]:
    low, high = groups.aminmax(dim=1, keepdim=True)
    least = torch.full_like(low, torch.inf)
    step = middle = torch.zeros_like(low)
    for steps in _STEPS:
        tried = ((high - low) / steps).clamp_(min=1e-30).bfloat16().float()
        centre = (low + (8 + max(0, steps - 15) / 2) * tried).bfloat16().float()
        scaled = (groups - centre).mul_(1 / tried)
        left = scaled.round().clamp_(-8, 7).sub_(scaled)
        error = left.square_().sum(1, keepdim=True).mul_(tried).mul_(tried)
        better = error < least
        least = torch.where(better, error, least)
        step, middle = torch.where(better, tried, step), torch.where(better, centre, middle)
    whole = (groups - middle).div_(step).round_().clamp_(-8, 7).add_(8)
    return whole.int(), torch.cat((step, middle), 1).bfloat16()


def expand(whole: Tensor, grid: Tensor) -> Tensor:
    """The weights that these stand for, in bfloat16."""
    groups = whole.view(-1, GROUP)
    step, middle = grid.transpose(0, 1).reshape(-1, 2, 1).float().unbind(1)
    weights = torch.empty(groups.shape, dtype=torch.bfloat16)
    for block in blocks(groups):
        weights[block] = (groups[block] - 8).mul(step[block]).add_(middle[block])
    return weights.view(whole.shape)


def blocks(rows: Tensor) -> Iterator[slice]:
    """Rows that are converted together."""
    size = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), size):
        yield slice(start, start + size)


def pack(whole: Tensor) -> Tensor:
    """The whole numbers in the order of this CPU's product."""
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    return packed


def multiply(x: Tensor, packed: Tensor, grid: Tensor) -> Tensor:
    """The product for [tokens, inputs] in bfloat16."""
    product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, grid)
    return product
