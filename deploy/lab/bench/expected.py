"""How many drafts a method accepts, from the distributions of target and draft alone.

`along` predicts a method's rounds over a text that the target has written, from both distributions
at each of its positions. A lossless method emits such texts, so whether a round goes on below a
token depends, given the text, on that position alone (and on how many drafts are left); where
rounds begin and end is then a Markov chain over the positions, which is summed exactly. None of the
methods' own drafting or verification code is used: it is a prediction of them.

The shape of a stochastic beam depends on distributions beside the text too. So its trees are drawn
by the method itself, and `of_tree` sums what its rule accepts of each (exactly, given the tree).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.model.tree import Tree
from workers.speculation import rejection
from workers.speculation.method import Method

Distribution = NDArray[np.float64]
Goes = Callable[[int, int], list[float]]
"""(position at which a round begins, tokens left) -> probability to go on below its l-th draft."""

REJECTED = 12
"""Of the rejected siblings before a third one, the number of likeliest that are distinguished."""


@dataclass(frozen=True, slots=True)
class DraftPosition:
    """A token of a text, and both models' distributions over the vocabulary there."""

    target: Distribution
    draft: Distribution
    token: int

    def given(self, joint: float) -> float:
        """The probability of an event given the token, from their joint probability."""
        return min(1.0, joint / float(self.target[self.token]))


def along(
    name: str, parameters: Mapping[str, Any], positions: Sequence[DraftPosition]
) -> float | None:
    """Rounds a method needs for the positions of a text; None: there is no closed form.

    Tokens over rounds is the mean acceptance length, bonus token included.
    """
    verification = parameters.get("verification")
    if name == "chain" and verification == "block":
        goes = block(positions, parameters["gamma"])
    elif name == "chain":
        goes = independent(positions, 1, parameters["gamma"])
    elif name == "spectr":
        goes = independent(positions, parameters["count"], parameters["gamma"])
    elif name == "recursive-c" and verification != "traversal":
        goes = levels(positions, parameters["branching"], distinct)
    elif name == "greedy-multi":
        goes = levels(positions, parameters["branching"], beside_certain)
    else:
        return None
    return rounds(len(positions), goes)


def rounds(count: int, goes: Goes) -> float:
    """Expected rounds until `count` tokens are emitted: the sum of how often each begins one."""
    begins = np.zeros(count + 1)
    begins[0] = 1.0
    for position in range(count):
        still = [1.0, *goes(position, count - position - 1)]
        for length, chance in enumerate(still):
            after = still[length + 1] if length + 1 < len(still) else 0.0
            begins[position + length + 1] += begins[position] * (chance - after)
    return float(begins[:count].sum())


def block(positions: Sequence[DraftPosition], gamma: int) -> Goes:
    """Block verification: the least ratio of draft to target so far, over the whole block."""
    ratios = [
        position.draft[position.token] / position.target[position.token] for position in positions
    ]

    def goes(position: int, left: int) -> list[float]:
        products = np.cumprod(ratios[position : position + min(gamma, left)])
        return [float(least) for least in np.minimum.accumulate(np.minimum(products, 1.0))]

    return goes


def levels(
    positions: Sequence[DraftPosition],
    branching: Sequence[int],
    accepted: Callable[[DraftPosition, int], float],
) -> Goes:
    """Trees in which the children of a node depend on nothing but the distributions there."""
    chance = {
        count: [accepted(position, count) for position in positions] for count in set(branching)
    }

    def goes(position: int, left: int) -> list[float]:
        here = [chance[count][position + at] for at, count in enumerate(branching[:left])]
        return [float(chance) for chance in np.cumprod(here)]

    return goes


def distinct(position: DraftPosition, count: int) -> float:
    """Recursive rejection of `count` draws without replacement: the token is one of them."""

    def joint(target: Distribution, draft: Distribution, count: int) -> float:
        token = position.token
        kept = float(min(target[token], draft[token]))
        excess = (draft - target).clip(min=0)  # the chance that a token is drawn and rejected
        if count == 1 or excess.sum() < 1e-12:
            return kept
        rest: Distribution = rejection.residual(target, draft)
        if rest[token] <= 0:
            return kept
        if count == 2:
            rejected = np.flatnonzero(excess)
            left = 1 - draft[rejected]
            seconds = draft[token] / np.where(left > 0, left, np.inf)
            accepted = (excess[rejected] * np.minimum(seconds, rest[token])).sum()
            return kept + float(accepted)
        likeliest = np.argsort(excess)[-REJECTED:]
        scale = float(excess.sum() / excess[likeliest].sum())
        return kept + scale * sum(
            float(excess[first]) * joint(rest, rejection.without(draft, int(first)), count - 1)
            for first in likeliest
            if excess[first] > 0
        )

    return position.given(joint(position.target, position.draft, count))


def beside_certain(position: DraftPosition, count: int) -> float:
    """Greedy multi-draft: a sure child for certain, another one as in speculative sampling."""
    sure = np.argsort(-position.draft, kind="stable")[: count - 1]
    if position.token in sure and position.draft[position.token] > 0:
        return 1.0
    rest = position.draft.copy()
    rest[sure] = 0
    if rest.sum() <= 0:
        return 0.0
    return position.given(
        float(min(position.target[position.token], rest[position.token] / rest.sum()))
    )


def independent(positions: Sequence[DraftPosition], count: int, gamma: int) -> Goes:
    """K-SEQ among `count` sequences: how many agree with the text is the state."""
    steps = [survivors(position, count) for position in positions]

    def goes(position: int, left: int) -> list[float]:
        state, survival = np.eye(count + 1)[count], []
        for step in steps[position : position + min(gamma, left)]:
            state = state @ step
            survival.append(1.0 - float(state[0]))
        return survival

    return goes


def survivors(position: DraftPosition, count: int) -> Distribution:
    """[count + 1, count + 1]: from candidates before the token to those that are the token.

    Generating functions: a candidate that was rejected is the token with the chance
    `mass - kept` over `1 - beta`, one that was never looked at with the chance `mass`.
    """
    step = np.zeros((count + 1, count + 1))
    step[0, 0] = 1.0
    token = position.token
    mass = float(position.draft[token])
    for held in range(1, count + 1):
        scale = rejection.rho(position.target, position.draft, held)
        overlap = rejection.overlap(position.draft, position.target / scale)
        kept, refused = float(overlap[token]), max(0.0, 1 - float(overlap.sum()))
        seen = np.array([refused - (mass - kept), mass - kept]).clip(min=0)  # rejected, by one
        unseen = np.array([1 - mass, mass])
        before, after = [np.ones(1)], [np.ones(1)]
        for _ in range(held):
            before.append(np.convolve(before[-1], seen))
            after.append(np.convolve(after[-1], unseen))
        probs = np.zeros(held + 1)
        for first in range(held):  # the candidate that is accepted
            probs[1:] += kept * np.convolve(before[first], after[held - 1 - first])
        # None is accepted, and the residual distribution gives the token nevertheless.
        rest = max(0.0, float(position.target[token]) - probs.sum())
        everyone = before[held].sum()
        probs += rest * (before[held] / everyone if everyone > 0 else np.eye(held + 1)[0])
        step[held, : held + 1] = probs / probs.sum()
    return step


# Drawn trees ------------------------------------------------------------------------------


def of_tree(
    method: Method, tree: Tree, targets: Any, stop_token_ids: Collection[int] = ()
) -> float:
    """Expected tokens of a round, its last one included, whose tree is drawn already.

    `targets[i]` is the distribution behind node i. Tokens behind a stop token do not count.
    """
    if tree.probs is not None and method.by_path:
        judged = _outcomes(lambda one: rejection.verify_by_path(tree, targets, one)[0])
        return sum(
            chance * _emitted([tree.tokens[i] for i in p[1:]], stop_token_ids)
            for p, chance, _ in judged
        )
    sampler = rejection.target_only if tree.probs is None else method.sampler

    def tokens(node: int) -> float:
        children = tree.children(node)
        if not children:
            return 1.0
        draft = None if tree.probs is None else tree.probs[node]
        drawn = [tree.tokens[c] for c in (tree.drawn[node] if tree.drawn else children)]
        target = targets[node]
        chances = dict.fromkeys((tree.tokens[child] for child in children), 0.0)
        for token, chance, probs in _outcomes(lambda one: sampler(target, draft, drawn, one)):
            if probs is None:
                chances[token] += chance
                continue
            for child in chances:
                chances[child] += chance * float(probs[child])
        beyond = (c for c in children if tree.tokens[c] not in stop_token_ids)
        return 1.0 + sum(chances[tree.tokens[c]] * tokens(c) for c in beyond)

    return tokens(0)


def _emitted(drafts: Sequence[int], stop_token_ids: Collection[int]) -> int:
    """Tokens of accepted drafts and the one behind them, up to the first stop token."""
    return next(
        (at for at, token in enumerate(drafts, 1) if token in stop_token_ids), len(drafts) + 1
    )


class _Fixed:
    """Refuses so often, then accepts; keeps the probability of that and what a draw is from."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.chance = refusals, 1.0
        self.accepted, self.probs = False, None

    def accept(self, target: Any, draft: Any) -> bool:
        chance = min(1.0, float(target) / float(draft))
        self.accepted = self.refusals == 0
        self.chance *= chance if self.accepted else 1 - chance
        self.refusals -= 1
        return self.accepted

    def draw(self, probs: Any) -> int:
        if not self.accepted:
            self.probs = probs
        return -1


def _outcomes(decide: Callable[[_Fixed], Any]) -> list[tuple[Any, float, Any]]:
    """All answers of a rule with their probabilities, and the distribution it drew from, if it did.

    A rule accepts at most once, so its outcomes differ in how often it refused before.
    """
    outcomes: list[tuple[Any, float, Any]] = []
    left = 1.0
    while left > 1e-12:
        one = _Fixed(len(outcomes))
        answer = decide(one)
        outcomes.append((answer, one.chance, one.probs))
        if not one.accepted:
            break
        left -= one.chance
    return outcomes
