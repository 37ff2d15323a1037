"""Recursive speculative decoding on trees of constant branching (RSD-C).

Jeon et al., "Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without
Replacement" (2402.14160). Each node of level l gets `branching[l]` distinct children: the largest
of log-probability plus Gumbel noise, which in falling order are draws without replacement.
Recursive rejection sampling tries siblings one after the other.

Traversal verification (Weng et al. 2505.12398) verifies the same tree from its leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation import rejection
from workers.speculation.drafter import (
    Child,
    DraftModelMethod,
    LoadModel,
    TreeExpander,
    gumbel_noise,
    row_probs,
)
from workers.speculation.parameters import branching_factors, one_of


class GumbelTopK(TreeExpander):
    """Draws the children of all nodes of a level at once; greedy rows without the noise."""

    def __init__(self, rows: Sequence[Row], branching: Sequence[int]) -> None:
        self.rows, self.branching = rows, branching
        self.sampled = any(not row.greedy for row in rows)

    def __call__(
        self, level: int, logits: Tensor, parent_index: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
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


class RecursiveConstant(DraftModelMethod):
    """`branching[l]` children at every node of level l; the length of the list is the depth."""

    sampler = staticmethod(rejection.recursive)

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        branching: Sequence[int] = (2, 2, 1, 1),
        verification: Literal["recursive", "traversal"] = "recursive",
    ) -> None:
        one_of("verification", verification, ("recursive", "traversal"))
        self.by_path = verification == "traversal"
        self.branching = branching_factors(branching)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, len(self.branching), GumbelTopK(rows, self.branching))
