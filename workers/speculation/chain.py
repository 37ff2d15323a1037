"""Speculative sampling with a draft model: one chain of `gamma` tokens a step.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
(2211.17192); Chen et al. (2302.01318). Mean acceptance length, bonus token included, is
(1 - a^(gamma + 1)) / (1 - a) at an acceptance rate of a per drafted token.
"""

from __future__ import annotations

from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation.drafter import ConfidentExpander, DraftModelMethod, LoadModel
from workers.speculation.parameters import at_least, fraction, tree_size


class Chain(DraftModelMethod):
    """At most `gamma` drafts a step; drafts after an unsure token cost more than they gain."""

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str,
        gamma: int = 4,
        threshold: float = 0.0,
    ) -> None:
        self.threshold = fraction("threshold", threshold)
        self.gamma = at_least("gamma", gamma, 0)
        tree_size(f"gamma {gamma}", 1 + gamma)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, self.gamma, ConfidentExpander(rows, self.threshold))
