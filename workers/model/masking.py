"""Logits held to a grammar, or from an end: what a row may not write gets probability zero.

That holds at every draft node. The masked distribution is then the target's: whatever a method
drafts, verification keeps exactly that distribution.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestrator.errors import InvalidRequest
from workers.model.target import ModelOutput
from workers.model.tree import Plan, Tree


class TokenMatcher(Protocol):
    """Which tokens may come next in one row (`workers.text.grammar.Matcher`)."""

    def allowed(self) -> Any:
        """A numpy array [vocabulary] of booleans."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token; False, and nothing changed, if it cannot follow."""
        ...

    def rollback(self, count: int) -> None: ...


class MinTokens:
    """A `TokenMatcher` of any text that none of the ids `ends` may end before `count` tokens.

    `size`: of the model's vocabulary.
    """

    def __init__(self, count: int, ends: Collection[int], size: int) -> None:
        self._count = count
        self._all = np.ones(size, dtype=bool)
        self._going_on = self._all.copy()
        self._going_on[[token for token in ends if token < size]] = False

    def allowed(self) -> NDArray[np.bool_]:
        return self._going_on if self._count > 0 else self._all

    def accept(self, token: int) -> bool:
        fits = bool(self.allowed()[token])
        self._count -= fits
        return fits

    def rollback(self, count: int) -> None:
        self._count += count


def mask(plan: Plan, scores: ModelOutput) -> ModelOutput:
    """The scores of a plan, those of its constrained rows masked; changed in place.

    A grammar that cannot be followed any further is its row's `failure`, and no other's.
    """
    for row, tree, logits in zip(plan.rows, plan.trees, scores.logits, strict=True):
        if row.matcher is not None and row.failure is None:
            try:
                _mask_node(row.matcher, tree, logits, 0)
            except InvalidRequest as error:
                row.failure = error
    return scores


def _mask_node(matcher: TokenMatcher, tree: Tree, logits: Tensor, node: int) -> None:
    """Mask a node that the matcher has reached, and those below it that can be accepted."""
    allowed = matcher.allowed()
    logits[node].masked_fill_(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
    for child in tree.children(node):
        token = tree.tokens[child]
        if allowed[token] and matcher.accept(token):
            _mask_node(matcher, tree, logits, child)
            matcher.rollback(1)


def mask_chain(matcher: TokenMatcher, tokens: list[int], logits: Tensor) -> bool:
    """Mask the logits [places, vocabulary] of a given text in place; return if all tokens fit.

    The matcher consumes the tokens [places, or one less] up to the first that does not fit.
    """
    for place in range(len(logits)):
        allowed = torch.from_numpy(matcher.allowed()).to(logits.device)
        logits[place].masked_fill_(~allowed, -torch.inf)
        if place < len(tokens) and not matcher.accept(tokens[place]):
            return False
    return True
