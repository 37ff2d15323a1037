"""Greedy multi-draft: the likeliest tokens for sure, and one draw from the others.

Hu et al., "Towards Optimal Multi-draft Speculative Decoding" (2502.18779). Of a node's n children
n - 1 are the likeliest under the draft law and one is drawn from the rest. For such a draft the
best transport is simple: speculative sampling with the drawn one; a residual draw that hits one
of the sure ones goes on below it. The rate is T(sure) + the overlap elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.model.rng import DRAFT, uniform
from workers.model.sampling import draw
from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation import rules
from workers.speculation.drafter import (
    Child,
    Drafted,
    LoadModel,
    Spread,
    branches,
    law_of,
    listed,
)


class GreedyMulti(Drafted):
    """`branching` children per node, level by level; its length is the depth."""

    rule = staticmethod(rules.beside_certain)

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        branching: Sequence[int] = (2, 2, 1, 1),
    ) -> None:
        self.branching = branches(branching)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, len(self.branching), TopAndOne(rows, self.branching))


class TopAndOne(Spread):
    """The children of every node of a level at once; greedy rows take the likeliest only."""

    def __init__(self, rows: Sequence[Row], branching: Sequence[int]) -> None:
        self.rows, self.branching = rows, branching
        self.greedy = torch.tensor([row.greedy for row in rows])[:, None]
        self.sampled = not bool(self.greedy.all())

    def __call__(
        self, level: int, logits: Tensor, seats: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        wanted = min(self.branching[level], logits.shape[-1])
        if not self.sampled:
            return listed(logits.topk(wanted).indices, seats), None
        laws = law_of(self.rows, logits)
        top = laws.topk(wanted)
        tokens = torch.where(top.values > 0, top.indices, -1)
        rest = laws.scatter(-1, top.indices[..., :-1], 0.0)
        mass = rest.sum(-1, keepdim=True)
        numbers = [
            uniform(row.seed, len(row.ids), DRAFT, level, node)
            for row in self.rows
            for node in range(logits.shape[1])
        ]
        column = torch.tensor(numbers, dtype=torch.float64, device=laws.device)
        drawn = draw(rest.flatten(0, 1), column).view(tokens.shape[:-1])
        drawn = torch.where(mass[..., 0] > 0, drawn, -1)
        tokens[..., -1] = torch.where(self.greedy.to(laws.device), tokens[..., -1], drawn)
        # A node without a rest has sure children only, and no law that a child was drawn from.
        return listed(tokens, seats), rest / torch.where(mass > 0, mass, 1)
