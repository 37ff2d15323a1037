"""Speculative sampling with a draft model: one chain of `gamma` tokens a round.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
(2211.17192); Chen et al. (2302.01318). Mean acceptance length, bonus token included, is
(1 - a^(gamma + 1)) / (1 - a) at an acceptance rate of a per drafted token.

Block verification (Sun et al. 2403.10444) judges the block as a whole and accepts at least as
many tokens of it on average; at temperature 0 both are the same.
"""

from __future__ import annotations

from typing import Literal

from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation.drafter import (
    Confident,
    Drafted,
    Independent,
    LoadModel,
    at_least,
    one_of,
    share,
    small_enough,
)


class Chain(Drafted):
    """At most `gamma` drafts a round; `verification` of one token after the other, or of the block.

    With a `threshold` a draft ends behind the first token at whose place the draft model's top
    probability is under it: what is likely to be refused is not drafted on.
    """

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        gamma: int = 4,
        threshold: float = 0.0,
        verification: Literal["token", "block"] = "token",
    ) -> None:
        self.threshold = share("threshold", threshold)
        self.gamma = at_least("gamma", gamma, 0)
        small_enough(f"gamma {gamma}", 1 + gamma)
        one_of("verification", verification, ("token", "block"))
        self.by_path = verification == "block"
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        spread = Confident(rows, self.threshold) if self.threshold else Independent(rows)
        return self.plan(rows, self.gamma, spread)
