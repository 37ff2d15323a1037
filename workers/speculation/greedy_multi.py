"""Greedy multi-draft: the likeliest tokens for sure, and one draw from the others.

Hu et al., "Towards Optimal Multi-draft Speculative Decoding" (2502.18779). A node has n children:
the n - 1 likeliest under the draft distribution, and one drawn from the rest. For such a draft the
optimal transport is simple: speculative sampling with the drawn one. If a residual draw gives one
of the others, verification continues below it. The acceptance rate is the target's mass on those
n - 1 tokens plus the overlap of both distributions elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.model.rng import DRAFT, uniform
from workers.model.sampling import draw
from workers.model.tree import Row
from workers.speculation import rejection
from workers.speculation.drafter import (
    BranchingMethod,
    Child,
    TreeExpander,
    children_of,
    draft_probs,
)


class TopAndOne(TreeExpander):
    """The children of every node of a level at once; greedy rows take the likeliest only."""

    def __init__(self, rows: Sequence[Row], branching: Sequence[int]) -> None:
        self.rows, self.branching = rows, branching
        self.greedy = torch.tensor([row.greedy for row in rows])[:, None]
        self.sampled = not bool(self.greedy.all())

    def __call__(
        self, level: int, logits: Tensor, parent_index: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        wanted = min(self.branching[level], logits.shape[-1])
        if not self.sampled:
            return children_of(logits.topk(wanted).indices, parent_index), None
        probs = draft_probs(self.rows, logits)
        top = probs.topk(wanted)
        tokens = torch.where(top.values > 0, top.indices, -1)
        rest = probs.scatter(-1, top.indices[..., :-1], 0.0)
        mass = rest.sum(-1, keepdim=True)
        numbers = [
            uniform(row.seed, len(row.ids), DRAFT, level, node)
            for row in self.rows
            for node in range(logits.shape[1])
        ]
        column = torch.tensor(numbers, dtype=torch.float64, device=probs.device)
        drawn = draw(rest.flatten(0, 1), column).view(tokens.shape[:-1])
        drawn = torch.where(mass[..., 0] > 0, drawn, -1)
        tokens[..., -1] = torch.where(self.greedy.to(probs.device), tokens[..., -1], drawn)
        # Where no mass is left, a node has no drawn child, and no distribution of one.
        return children_of(tokens, parent_index), rest / torch.where(mass > 0, mass, 1)


class GreedyMulti(BranchingMethod):
    """`branching` children per node, level by level; its length is the depth."""

    sampler = staticmethod(rejection.greedy_multi)
    expander = TopAndOne
