"""Speculative sampling with a draft model: one chain of `gamma` tokens a round.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
(2211.17192); Chen et al. (2302.01318). Mean acceptance length, bonus token included, is
(1 - a^(gamma + 1)) / (1 - a) at an acceptance rate of a per drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.speculation.drafter import Drafter, LoadModel
from workers.speculation.method import Method
from workers.speculation.target import SPARE, Result, Target
from workers.speculation.tree import Accepted, Plan, Row


class Chain(Method):
    """`draft` names the checkpoint of the draft model, which shares the target's tokenizer."""

    def __init__(
        self, target: Target, load_model: LoadModel, *, draft: str, gamma: int = 4
    ) -> None:
        super().__init__(target)
        if not 0 <= gamma < SPARE:
            raise ValueError(f"gamma must be between 0 and {SPARE - 1}, not {gamma}")
        self.gamma = gamma
        self.drafter = Drafter(load_model(draft), target)

    def join(self, row: Row) -> None:
        self.drafter.join(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        cache = self.drafter.cache
        cache.copy(source, slot, min(length, cache.lengths[source]))

    def draft(self, rows: list[Row]) -> Plan:
        wanted = [max(0, min(self.gamma, row.room - 1)) for row in rows]
        return Plan(rows, self.drafter.chains(rows, wanted))

    def commit(self, plan: Plan, accepted: Sequence[Accepted], result: Result) -> None:
        for row, one in zip(plan.rows, accepted, strict=True):
            self.drafter.commit(row, len(one.path) - 1)
