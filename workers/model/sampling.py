"""Distributions and draws from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.types import Sampling
from workers.model.rng import ACCEPT, FIRST, SECOND, STEP, uniform


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def gumbels(keys: Sequence[int], size: int, device: torch.device | str = "cpu") -> Tensor:
    """[keys, size] standard Gumbel numbers in float64: the stream of splitmix64 behind each key."""
    x = torch.tensor([_signed(k) for k in keys], device=device)[:, None]
    x = x + torch.arange(1, size + 1, device=device) * _signed(STEP)
    for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
        x ^= (x >> shift) & ((1 << 64 - shift) - 1)  # torch shifts signs in: cut them off
        x *= _signed(factor)
    # 52 bits and a half: neither 0 nor 1, so that both logarithms are finite.
    unit = ((x >> 12) & ((1 << 52) - 1)).double().add_(0.5).mul_(2.0**-52)
    return unit.log_().neg_().log_().neg_()


def warp(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """[rows, n, vocabulary] logits to laws: temperature, then top-k, then top-p.

    The order and the meaning of top-p (the smallest set that reaches p) are transformers'.
    """
    column = [-1, 1, 1]
    temperature = torch.tensor([s.temperature for s in samplings], device=logits.device)
    logits = logits.float() / temperature.view(column)
    if any(s.top_k > 0 or s.top_p < 1 for s in samplings):
        size = logits.shape[-1]
        top_k = torch.tensor([s.top_k or size for s in samplings], device=logits.device)
        top_p = torch.tensor(
            [s.top_p if s.top_p < 1 else 2.0 for s in samplings], device=logits.device
        )
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(size, device=logits.device)
        ordered = ordered.masked_fill(rank >= top_k.view(column), -torch.inf)
        law = ordered.softmax(-1)
        beyond = (law.cumsum(-1) - law >= top_p.view(column)) & (rank > 0)
        ordered = ordered.masked_fill(beyond, -torch.inf)
        logits = torch.empty_like(ordered).scatter_(-1, order, ordered)
    return logits.softmax(-1)


def draw(laws: Tensor, numbers: Tensor) -> Tensor:
    """Inverse distribution function: [rows, vocabulary] laws and [rows] numbers to [rows] tokens.

    Never a token of probability zero: a flat stretch of the sum is skipped, and the rounding of
    the total is caught by the last token that has any mass.
    """
    sums = laws.double().cumsum(-1)
    total = sums[:, -1:].contiguous()
    last = torch.searchsorted(sums, total, right=False)
    tokens = torch.searchsorted(sums, numbers[:, None].double() * total, right=True)
    # A law of NaNs has no last token; its caller sees that by the logits.
    return torch.minimum(tokens, last).clamp_(max=laws.shape[-1] - 1).squeeze(1)


class Chance:
    """The random choices of one position. Tests put an exhaustive enumerator in its place."""

    __slots__ = ("position", "seed", "tests")

    def __init__(self, seed: int, position: int) -> None:
        self.seed, self.position, self.tests = seed, position, 0

    def accept(self, target: Any, draft: Any) -> bool:
        """True with probability min(1, target / draft). Strict, so target 0 never passes."""
        number = uniform(self.seed, self.position, ACCEPT + self.tests)
        self.tests += 1
        return bool(number * float(draft) < float(target))

    def draw(self, law: Any) -> int:
        number = uniform(self.seed, self.position)
        if isinstance(law, np.ndarray):
            sums = law.cumsum(dtype=np.float64)
            token = sums.searchsorted(number * sums[-1], side="right")
            return int(min(token, sums.searchsorted(sums[-1]), len(law) - 1))
        return int(draw(law[None], torch.tensor([number], device=law.device)))
