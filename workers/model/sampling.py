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
from workers.rng import ACCEPT, FIRST, SECOND, STEP, uniform


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def gumbels(keys: Sequence[int], size: int, device: torch.device | str = "cpu") -> Tensor:
    """[keys, size] standard Gumbel numbers in float64: the stream of splitmix64 after each key."""
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
    return WorkerError(
        f"{whose} logits are NaN where numbers are expected: check its weights, dtype and device"
    )


NEAR = 256
"""How many of the likeliest tokens are sorted first: `top_k` and `top_p` seldom keep more."""


def warp(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """[rows, n, vocabulary] logits to probabilities: temperature, then top-k, then top-p.

    The order and the meaning of top-p (the smallest set that reaches p) are transformers'. Of
    equal logits the token with the lower id comes first.
    """
    places, size = logits.shape[1:]
    temperature = torch.tensor([s.temperature for s in samplings], device=logits.device)
    logits = logits.float() / temperature.view(-1, 1, 1)
    probs = logits.softmax(-1)
    rows = [i for i, s in enumerate(samplings) if 0 < s.top_k < size or s.top_p < 1]
    if not rows:
        return probs
    top_k = torch.tensor([samplings[i].top_k or size for i in rows], device=logits.device)
    top_p = torch.tensor(
        [samplings[i].top_p if samplings[i].top_p < 1 else 2.0 for i in rows], device=logits.device
    )
    every = len(rows) == len(samplings)
    truncated = _truncate(
        (logits if every else logits[rows]).reshape(-1, size),
        (probs if every else probs[rows]).reshape(-1, size),
        top_k.repeat_interleave(places),
        top_p.repeat_interleave(places),
    ).view(-1, places, size)
    if every:
        return truncated
    probs[rows] = truncated
    return probs


def _truncate(logits: Tensor, probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """[items, vocabulary] probabilities of each item's likeliest tokens, and 0 of the others.

    To sort a large vocabulary may take longer than the pass that its logits are from: only items
    that need more than their likeliest `NEAR` tokens are sorted whole.
    """
    size = logits.shape[-1]
    near = min(NEAR + 1, size)
    values, ids = logits.topk(near)
    ids, order = ids.sort(dim=-1)  # so that equal logits are in the order of their ids
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    kept = drop_unlikely(values, probs.gather(-1, ids), top_k, top_p)
    truncated = torch.zeros_like(logits).scatter_(-1, ids, kept.softmax(-1))
    if near == size:
        return truncated
    # Tokens that equal the last of the likeliest may be missing among them.
    sure = (values > values[:, -1:]).sum(-1)
    far = ((kept > -torch.inf).sum(-1) > sure) | ((top_k > near) & (top_k < size))
    if len(items := far.nonzero().squeeze(-1)):
        values, ids = logits[items].sort(dim=-1, descending=True, stable=True)
        kept = drop_unlikely(values, probs[items].gather(-1, ids), top_k[items], top_p[items])
        truncated[items] = torch.zeros_like(values).scatter_(-1, ids, kept.softmax(-1))
    return truncated


def drop_unlikely(logits: Tensor, probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """[items, n] logits, the largest first, with -inf for the tokens that are dropped.

    `probs` are theirs in the whole vocabulary, of which these may be the beginning.
    """
    rank = torch.arange(logits.shape[-1], device=logits.device)
    dropped = rank >= top_k[:, None]
    limited = top_k[:, None] <= logits.shape[-1]
    probs = torch.where(limited, logits.masked_fill(dropped, -torch.inf).softmax(-1), probs)
    dropped |= (probs.cumsum(-1) - probs >= top_p[:, None]) & (rank > 0)
    return logits.masked_fill(dropped, -torch.inf)


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
