"""Node rules: from a target law, a draft law and candidates to one token.

The token's law must be the target's whatever the draft law is; that is the whole of
losslessness, and `tests/workers/test_lossless.py` proves it by exact enumeration. Laws are any
one-dimensional arrays (torch in service, fractions in the proof); all choices go through
`chance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from workers.model.tree import Tree


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


def without_replacement(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """Distinct candidates, each drawn from what the earlier ones left of the draft law.

    Recursive rejection sampling (Jeon et al. 2402.14160): a rejection replaces the target by the
    residual against the law this candidate was drawn from, and that law by the next one's.
    """
    for token in candidates:
        if chance.accept(target[token], draft[token]):
            return token
        target, draft = residual(target, draft), without(draft, token)
    return chance.draw(target)


def without(draft: Any, token: int) -> Any:
    """The law of a draw that must not be `token` again; all zeros if nothing else is left."""
    rest = draft + 0  # a copy, of whatever kind the array is
    rest[token] = 0
    mass = rest.sum()
    return rest / mass if mass > 0 else rest


def beside_certain(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """Candidates without draft mass are there for sure, the others were drawn.

    Greedy multi-draft (Hu et al. 2502.18779): speculative sampling with the drawn one alone. A
    residual draw often hits one of the sure ones, and the walk goes on there.
    """
    return rejection(target, draft, [token for token in candidates if draft[token] > 0], chance)


def k_seq(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """K-sequential selection among independent candidates (SpecTr, Sun et al. 2310.15141).

    Each is accepted with probability min(1, target / (rho draft)), at the smallest rho for which
    the accepted mass nowhere exceeds the target; what remains of the target is the residual.
    """
    count = len(candidates)
    if not count:
        return chance.draw(target)
    scale = rho(target, draft, count)
    for token in candidates:
        if chance.accept(target[token], scale * draft[token]):
            return token
    kept = overlap(draft, target / scale)
    refused = 1 - kept.sum()
    rest = (target - kept * sum(refused**i for i in range(count))).clip(min=0)
    mass = rest.sum()
    return chance.draw(rest / mass if mass > 1e-12 else target)


def overlap(left: Any, right: Any) -> Any:
    """The smaller of both, element by element."""
    return left - (left - right).clip(min=0)


def rho(target: Any, draft: Any, count: int) -> float:
    """The root in [1, count] of f(rho) = 1 - (1 - beta)^count - rho beta, from above.

    beta(rho) = sum of min(draft, target / rho) is the chance that one candidate is accepted. f
    falls, and only where it is not positive is the residual a law; hence the upper end of the
    bracket, which a secant method shrinks (Illinois: the end that stays counts half).
    """

    def excess(scale: float) -> float:
        beta = float(overlap(draft, target / scale).sum())
        return 1 - (1 - beta) ** count - scale * beta

    low, high = 1.0, float(count)
    above, below = excess(low), excess(high)
    if above <= 0:
        return low
    best, moved = below, 0
    for _ in range(100):
        if not (best < -1e-12 and high - low > 1e-9):
            break
        middle = (low * below - high * above) / (below - above)
        value = excess(middle)
        if value > 0:
            low, above = middle, value
            below, moved = (below / 2 if moved > 0 else below), 1
        else:
            high, below, best = middle, value, value
            above, moved = (above / 2 if moved < 0 else above), -1
    return high


def follow(target: Any, draft: Any, candidates: Sequence[int], chance: Choices) -> int:
    """Deterministic candidates: draw from the target and see whether it was drafted."""
    return chance.draw(target)


def verify_by_node(
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
        drawn = children if tree.drawn is None else tree.drawn[node]
        candidates = [tree.tokens[child] for child in drawn]
        token = rule(targets[node], draft, candidates, chance_at(len(path)))
        taken = next((child for child in children if tree.tokens[child] == token), None)
        if taken is None:
            return path, token
        path.append(taken)


def verify_by_path(tree: Tree, targets: Any, chance: Choices) -> tuple[list[int], int]:
    """Judge whole paths, the deepest first; on a chain this is block verification.

    Traversal verification (Weng et al. 2505.12398); block verification (Sun et al. 2403.10444).
    `reach` is the probability with which something at or below a node is accepted, given the
    path to it and before any draw below it is known. Siblings are drawn without replacement from
    the laws (equal independent ones count once, where they came first).

    `chance` serves the whole block, and no other block. Returns what `verify_by_node` returns.
    """

    def visit(node: int, reach: Any) -> tuple[list[int], int] | None:
        target, children = targets[node], tree.children(node)
        draft: Any = tree.laws[node] if children else None
        for child in children:
            token = tree.tokens[child]
            found = visit(child, min(1, reach * target[token] / draft[token]))
            if found is not None:
                return [node, *found[0]], found[1]
            rest = (reach * target - draft).clip(min=0)
            mass = rest.sum()
            if mass > 1e-12:
                target, reach = rest / mass, mass / (mass + (1 - reach))
            elif reach < 1:  # else the laws are equal and nothing is ever rejected
                reach = 0
            draft = without(draft, token)
        return ([node], chance.draw(target)) if chance.accept(reach, 1) else None

    accepted = visit(0, 1)
    assert accepted is not None  # the root's reach is 1
    return accepted
