"""A method that makes a lossless one faster at the price of exactness. **Lossy.**

It drafts as its `base` does, but scores (`score`) or verifies (`verify`) the drafts in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row
from workers.speculation.drafter import LoadModel
from workers.speculation.method import Method
from workers.speculation.parameters import true_or_false


class LossyMethod(Method):
    """Drafts, scores, verifies and commits as its base, unless a subclass overrides it.

    Args:
        base: a lossless method that drafts; `parameters` are for it, and `draft` if given.
        thoughts_only: whether the base alone decodes answers, which people read. The method stays
            lossy: an answer follows from its thought.
    """

    lossless = False

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str | None,
        base: str,
        thoughts_only: bool,
        **parameters: Any,
    ) -> None:
        super().__init__(target)
        self.thoughts_only = true_or_false("thoughts_only", thoughts_only)
        method: Any = self.registry.get(base)
        if method is None or not method.lossless:
            raise ValueError(f"base must be a lossless method, not {base!r}")
        self.check_base(base, method)
        if draft is not None:
            parameters["draft"] = draft
        self.base: Method = method(target, load_model, **parameters)

    @staticmethod
    def check_base(name: str, base: Any) -> None:
        """Raise ValueError if a lossless method cannot be the base of this one."""

    def exact(self, row: Row) -> bool:
        """Whether the base alone decodes a row."""
        return self.thoughts_only and row.answering

    def join(self, row: Row) -> None:
        self.base.join(row)

    def leave(self, row: Row) -> None:
        self.base.leave(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        self.base.copy(source, slot, length)

    def pause_with(self, serve: Callable[[], None]) -> None:
        self.base.pause_with(serve)

    def stats(self) -> dict[str, int]:
        return self.base.stats()

    def draft(self, rows: list[Row]) -> Plan:
        return self.base.draft(rows)

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        return self.base.score(target, plan)

    def verify(self, plan: Plan, scores: ModelOutput) -> list[Accepted]:
        return self.base.verify(plan, scores)

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        self.base.commit(plan, accepted, scores)
