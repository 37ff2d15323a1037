"""Recursive speculative decoding: trees of distinct children, drawn without replacement.

Jeon et al., "Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without
Replacement" (2402.14160). The largest of log-probability plus Gumbel noise, in falling order, are
draws without replacement; recursive rejection sampling tries siblings one after the other.

RSD-C gives every node of a level the same number of children. RSD-S keeps the beam of a stochastic
beam search (Kool et al. 1903.06059): the sequences with the largest perturbed log-probability, the
noise of a node's children conditioned on their maximum being the node's. So the beam of every level
is a sample of sequences without replacement, and most nodes have a high draft probability. A node's
place in the beam depends on values that, given its earlier siblings, are independent of its token,
so recursive rejection is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation import rejection
from workers.speculation.drafter import (
    DraftModelMethod,
    Level,
    LoadModel,
    TreeExpander,
    gumbel_noise,
    row_probs,
)
from workers.speculation.parameters import at_least, branching_factors, tree_size


class Recursive(DraftModelMethod):
    """A method whose trees have distinct siblings."""

    sampler = staticmethod(rejection.recursive)


class RecursiveConstant(Recursive):
    """`branching[l]` children at every node of level l; the length of the list is the depth."""

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        branching: Sequence[int] = (2, 2, 1, 1),
    ) -> None:
        self.branching = branching_factors(branching)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, len(self.branching), GumbelTopK(rows, self.branching))


class RecursiveBeam(Recursive):
    """A beam of `width` sequences, `gamma` tokens deep; without noise at temperature 0."""

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        width: int = 4,
        gamma: int = 4,
    ) -> None:
        self.width, self.gamma = at_least("width", width, 1), at_least("gamma", gamma, 0)
        tree_size(f"width {width} and gamma {gamma}", 1 + width * gamma)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, self.gamma, StochasticBeam(rows, self.width))


class GumbelTopK(TreeExpander):
    """Draws the children of all nodes of a level at once; greedy rows without the noise."""

    def __init__(self, rows: Sequence[Row], branching: Sequence[int]) -> None:
        self.rows, self.branching = rows, branching
        self.sampled = any(not row.greedy for row in rows)

    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        probs = row_probs(self.rows, logits) if self.sampled else None
        scores = logits
        if probs is not None:
            scores = probs.log() + gumbel_noise(self.rows, level, logits)
        best = scores.topk(min(self.branching[level], logits.shape[-1]))
        tokens = torch.where(best.values > -torch.inf, best.indices, -1).tolist()
        counts = [max(index, default=-1) + 1 for index in parent_index]  # the rest is padding
        return [
            [
                (parent, token)
                for parent, mine in enumerate(nodes[:count])
                for token in mine
                if token >= 0
            ]
            for nodes, count in zip(tokens, counts, strict=True)
        ], probs


class StochasticBeam(TreeExpander):
    """Stochastic beam search, level by level.

    `log_probability` and `perturbed` are [rows, nodes] of the level (phi and G in the papers),
    minus infinity beyond a row's last node.
    """

    def __init__(self, rows: Sequence[Row], width: int) -> None:
        self.rows, self.width = rows, width
        self.greedy = torch.tensor([row.greedy for row in rows])[:, None, None]
        self.sampled = not bool(self.greedy.all())
        self.log_probability = self.perturbed = torch.zeros(len(rows), 1, dtype=torch.float64)

    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        nodes, vocabulary = logits.shape[1:]
        probs = row_probs(self.rows, logits)
        before = self.log_probability[:, :nodes, None].to(logits.device)
        sums = before + probs.double().log()
        scores = sums
        if self.sampled:
            own = self.perturbed[:, :nodes, None].to(logits.device)
            conditioned = below(own, sums + gumbel_noise(self.rows, level, logits))
            scores = torch.where(self.greedy.to(logits.device), sums, conditioned)
        scores = scores.masked_fill(before == -torch.inf, -torch.inf).flatten(1)
        best = scores.topk(min(self.width, scores.shape[1]))
        self.perturbed = best.values
        self.log_probability = sums.flatten(1).gather(1, best.indices)
        chosen = torch.where(best.values > -torch.inf, best.indices, -1).tolist()
        children = [[divmod(index, vocabulary) for index in row if index >= 0] for row in chosen]
        return children, probs if self.sampled else None


def below(maximum: Tensor, perturbed: Tensor) -> Tensor:
    """Condition Gumbel numbers on their `maximum` over the last dimension.

    -log(exp(-maximum) - exp(-largest) + exp(-perturbed)), in the stable form of 1903.06059, App. B.
    """
    largest = perturbed.amax(-1, keepdim=True)
    distance = maximum - perturbed + torch.log1p(-torch.exp(perturbed - largest))
    return maximum - distance.clamp(min=0) - torch.log1p(torch.exp(-distance.abs()))
