"""Rejection samplers, which choose a node's next token, and how they verify a tree.

Lossless means that the token has the target's distribution, whatever the draft's is;
`tests/workers/speculation/test_lossless.py` proves it by exact enumeration. Distributions are
one-dimensional arrays over the vocabulary (torch or numpy in service, fractions in the proof); all
random choices go through `rng`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workers.model.sampling import KeyedRng
from workers.model.tree import Tree

RejectionSampler = Callable[[Any, Any, Sequence[int], KeyedRng], int]
"""`sampler(target, draft, candidates, rng)` returns the next token at a node, from both models'
probabilities there and the drafted tokens."""


def residual(target: Any, draft: Any) -> Any:
    """Return norm([target - draft]+), or the target if nothing is left (then no rejection)."""
    return normed((target - draft).clip(min=0), target)


def normed(rest: Any, otherwise: Any) -> Any:
    """Return `rest` as a distribution, or `otherwise` if it has no mass."""
    mass = rest.sum()
    return rest / mass if mass > 1e-12 else otherwise


def independent(target: Any, draft: Any, candidates: Sequence[int], rng: KeyedRng) -> int:
    """Try independent candidates of one draft distribution in order (Leviathan et al. 2211.17192).

    Accept each with probability min(1, target/draft); a rejection replaces the target by the
    residual for the next candidate. With one candidate this is speculative sampling, with none a
    draw from the target.
    """
    for token in candidates:
        if rng.accept(target[token], draft[token]):
            return token
        target = residual(target, draft)
    return rng.draw(target)


def recursive(target: Any, draft: Any, candidates: Sequence[int], rng: KeyedRng) -> int:
    """Try distinct candidates, drawn from the draft distribution without replacement.

    Recursive rejection sampling (Jeon et al. 2402.14160): a rejection replaces the target by the
    residual against this candidate's distribution, and that distribution by the next candidate's.
    """
    for token in candidates:
        if rng.accept(target[token], draft[token]):
            return token
        target, draft = residual(target, draft), without(draft, token)
    return rng.draw(target)


def without(draft: Any, token: int) -> Any:
    """Return the distribution given that it is not `token`; all zeros if nothing else is left."""
    rest = draft + 0  # a copy, of whatever kind the array is
    rest[token] = 0
    mass = rest.sum()
    return rest / mass if mass > 0 else rest


def k_sequential(target: Any, draft: Any, candidates: Sequence[int], rng: KeyedRng) -> int:
    """Select k-sequentially among independent candidates (SpecTr, Sun et al. 2310.15141).

    Accept each with probability min(1, target / (rho draft)), at the smallest rho for which the
    accepted mass nowhere exceeds the target; the rest of the target is the residual.
    """
    count = len(candidates)
    if not count:
        return rng.draw(target)
    scale = rho(target, draft, count)
    for token in candidates:
        if rng.accept(target[token], scale * draft[token]):
            return token
    kept = overlap(draft, target / scale)
    rejected = 1 - kept.sum()
    rest = (target - kept * sum(rejected**i for i in range(count))).clip(min=0)
    return rng.draw(normed(rest, target))


def overlap(left: Any, right: Any) -> Any:
    """Return the smaller of both, element by element."""
    return left - (left - right).clip(min=0)


def rho(target: Any, draft: Any, count: int) -> float:
    """Return the root in [1, count] of f(rho) = 1 - (1 - beta)^count - rho beta, from above.

    beta(rho) = sum of min(draft, target / rho) is the probability that one candidate is accepted.
    f falls, and the residual is a distribution only if f is not positive. So return the upper end
    of the bracket, which a secant method shrinks (Illinois: the end that stays counts half).
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


def target_only(target: Any, draft: Any, candidates: Sequence[int], rng: KeyedRng) -> int:
    """Draw from the target, for deterministic candidates; the draft continues at an equal one."""
    return rng.draw(target)


def verify_by_node(
    tree: Tree, targets: Any, sampler: RejectionSampler, rng_at: Callable[[int], KeyedRng]
) -> tuple[list[int], int]:
    """Verify a tree by rejection sampling: descend while the sampled token is a child.

    `targets[i]` are the target's probabilities after node i, `rng_at(d)` serves the token d
    places after the newest committed one. Return the accepted path from node 0, and the token that
    ends it: *recovered* after a rejection, *bonus* at a leaf.
    """
    path = [0]
    while True:
        node = path[-1]
        children = tree.children(node)
        draft = tree.probs[node] if tree.probs is not None and children else None
        drawn = children if tree.drawn is None else tree.drawn[node]
        candidates = [tree.tokens[child] for child in drawn]
        token = sampler(targets[node], draft, candidates, rng_at(len(path)))
        accepted = next((child for child in children if tree.tokens[child] == token), None)
        if accepted is None:
            return path, token
        path.append(accepted)
