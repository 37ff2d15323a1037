"""Laws and draws.

Random numbers come from a counter, not from a state: the number behind a draw is a function of
(seed, absolute position, purpose). A call therefore draws the same tokens alone and in any batch,
and plain decoding draws them again when it is resumed half-way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orchestrator.types import Sampling

DRAW, DRAFT, ACCEPT = 0, 1, 2  # purposes; ACCEPT + i is the i-th test at a position
_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters bits."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int, purpose: int = DRAW) -> float:
    """A number in [0, 1) that depends on its arguments only."""
    return (_mix(_mix(_mix(seed & _MASK) ^ position) ^ purpose) >> 11) * 2.0**-53


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
        number = torch.tensor([uniform(self.seed, self.position)], dtype=torch.float64)
        return int(draw(law[None], number.to(law.device)))
