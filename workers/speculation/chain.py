"""Speculative sampling with a draft model: one chain of `gamma` tokens a round.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
(2211.17192); Chen et al. (2302.01318). Mean acceptance length, bonus token included, is
(1 - a^(gamma + 1)) / (1 - a) at an acceptance rate of a per drafted token.

Block verification (Sun et al. 2403.10444) judges the block as a whole and accepts at least as
many tokens of it on average; at temperature 0 both are the same.
"""

from __future__ import annotations

from typing import Literal

from workers.speculation.drafter import (
    Drafted,
    Independent,
    LoadModel,
    at_least,
    one_of,
    small_enough,
)
from workers.speculation.target import Target
from workers.speculation.tree import Plan, Row


class Chain(Drafted):
    """`gamma` drafts a round; `verification` of one token after the other, or of the block."""

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        gamma: int = 4,
        verification: Literal["token", "block"] = "token",
    ) -> None:
        self.gamma = at_least("gamma", gamma, 0)
        small_enough(f"gamma {gamma}", 1 + gamma)
        one_of("verification", verification, ("token", "block"))
        self.by_path = verification == "block"
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, self.gamma, Independent(rows))
