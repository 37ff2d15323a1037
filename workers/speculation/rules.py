"""Node rules: from a target law, a draft law and candidates to one token.

The token's law must be the target's whatever the draft law is; that is the whole of
losslessness, and `tests/workers/test_lossless.py` proves it by exact enumeration. Laws are any
one-dimensional arrays (torch in service, fractions in the proof); all choices go through
`chance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from workers.speculation.tree import Tree


class Choices(Protocol):
    """What a rule may leave to chance."""

    def accept(self, target: Any, draft: Any) -> bool: ...

    def draw(self, law: Any) -> int: ...


Rule = Callable[[Any, Any, Sequence[int], Choices], int]


def residual(target: Any, draft: Any) -> Any:
    """norm([target - draft]+); the target itself where nothing is left (then no rejection)."""
    rest = (target - draft).clip(min=0)
    mass = rest.sum()
    return rest / mass if mass > 1e-12 else target


def rejection(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """Independent candidates of one draft law, tried in order (Leviathan et al. 2211.17192).

    Each is accepted with probability min(1, target/draft); a rejection replaces the target by
    the residual, for which the next candidate is tried. With one candidate this is speculative
    sampling, with none a draw from the target.
    """
    for token in candidates:
        if chance.accept(target[token], draft[token]):
            return token
        target = residual(target, draft)
    return chance.draw(target)


def follow(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """Deterministic candidates: draw from the target and see whether it was drafted."""
    return chance.draw(target)


def walk(
    tree: Tree, targets: Any, rule: Rule, chance_at: Callable[[int], Choices]
) -> tuple[list[int], int]:
    """Lift a node rule to a tree: descend while the chosen token is a child.

    `targets[i]` is the target law behind node i, `chance_at(d)` serves the token d places after
    the newest committed one. Returns the accepted path from node 0, and the token that ends it:
    *recovered* where the draft was left, *bonus* at a leaf.
    """
    path = [0]
    while True:
        node = path[-1]
        children = tree.children(node)
        draft = tree.laws[node] if tree.laws is not None and children else None
        candidates = [tree.tokens[child] for child in children]
        token = rule(targets[node], draft, candidates, chance_at(len(path)))
        taken = next((child for child in children if tree.tokens[child] == token), None)
        if taken is None:
            return path, token
        path.append(taken)
