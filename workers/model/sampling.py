"""Next-token distributions, and sampling from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.errors import WorkerError
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


def is_nan(logits: Tensor) -> bool:
    """Whether a logit is NaN; one transfer."""
    return math.isnan(float(logits.sum()))


def nan_logits(whose: str = "the model's") -> WorkerError:
    """The error where logits are NaN."""
    return WorkerError(
        f"{whose} logits are NaN where numbers are expected: check its weights, dtype and device"
    )


def warp(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """[rows, n, vocabulary] logits to probabilities: temperature, then top-k, then top-p.

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
        probs = ordered.softmax(-1)
        beyond = (probs.cumsum(-1) - probs >= top_p.view(column)) & (rank > 0)
        ordered = ordered.masked_fill(beyond, -torch.inf)
        logits = torch.empty_like(ordered).scatter_(-1, order, ordered)
    return logits.softmax(-1)


def draw(probs: Tensor, numbers: Tensor) -> Tensor:
    """Inverse transform sampling: [rows, vocabulary] probabilities and [rows] numbers in [0, 1)
    to [rows] tokens.

    Never a token of probability zero: a flat stretch of the sum is skipped, and a number beyond
    the rounded total gives the last token with any mass.
    """
    sums = probs.double().cumsum(-1)
    total = sums[:, -1:].contiguous()
    last = torch.searchsorted(sums, total, right=False)
    tokens = torch.searchsorted(sums, numbers[:, None].double() * total, right=True)
    # NaNs have no last token; the caller checks the logits.
    return torch.minimum(tokens, last).clamp_(max=probs.shape[-1] - 1).squeeze(1)


class KeyedRng:
    """The random choices at one position. Tests put an exhaustive enumerator in its place."""

    __slots__ = ("position", "seed", "tests")

    def __init__(self, seed: int, position: int) -> None:
        self.seed, self.position, self.tests = seed, position, 0

    def accept(self, target: Any, draft: Any) -> bool:
        """True with probability min(1, target / draft). Strict, so target 0 never passes."""
        number = uniform(self.seed, self.position, ACCEPT + self.tests)
        self.tests += 1
        return bool(number * float(draft) < float(target))

    def draw(self, probs: Any) -> int:
        """A token of the distribution [vocabulary], a numpy array or a tensor."""
        number = uniform(self.seed, self.position)
        if isinstance(probs, np.ndarray):
            sums = probs.cumsum(dtype=np.float64)
            token = sums.searchsorted(number * sums[-1], side="right")
            return int(min(token, sums.searchsorted(sums[-1]), len(probs) - 1))
        return int(draw(probs[None], torch.tensor([number], device=probs.device)))
