"""Recursive speculative decoding on trees of constant branching (RSD-C).

Jeon et al., "Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without
Replacement" (2402.14160). Each node of level l gets `branching[l]` distinct children: the largest
of log-probability plus Gumbel noise, which in falling order are draws without replacement.
Recursive rejection sampling tries siblings one after the other.

Traversal verification (Weng et al. 2505.12398) judges the same tree from its leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

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
    noise,
    one_of,
)


class RecursiveConstant(Drafted):
    """`branching` children per node, level by level; its length is the depth."""

    rule = staticmethod(rules.without_replacement)

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        branching: Sequence[int] = (2, 2, 1, 1),
        verification: Literal["recursive", "traversal"] = "recursive",
    ) -> None:
        self.branching = branches(branching)
        one_of("verification", verification, ("recursive", "traversal"))
        self.by_path = verification == "traversal"
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, len(self.branching), GumbelTopK(rows, self.branching))


class GumbelTopK(Spread):
    """The children of every node of a level at once; greedy rows go without the noise."""

    def __init__(self, rows: Sequence[Row], branching: Sequence[int]) -> None:
        self.rows, self.branching = rows, branching
        self.sampled = any(not row.greedy for row in rows)

    def __call__(
        self, level: int, logits: Tensor, seats: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        laws = law_of(self.rows, logits) if self.sampled else None
        scores = logits if laws is None else laws.log() + noise(self.rows, level, logits)
        best = scores.topk(min(self.branching[level], logits.shape[-1]))
        tokens = torch.where(best.values > -torch.inf, best.indices, -1)
        return listed(tokens, seats), laws
