"""The law of what comes out is the target's: proved by enumeration, with fractions.

The walk takes its random choices through `chance`; an enumerator in its place follows every
outcome with its exact probability. A round emits between one token and depth + 1; the block is
extended to full depth with the target's own law, and the result must equal it exactly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from workers.speculation import rules
from workers.speculation.tree import Tree

VOCABULARY, DEPTH = 3, 2
Laws = dict[tuple[int, ...], Any]


class Branch(Exception):
    """A choice that the replayed script does not cover: its outcomes and their weights."""

    def __init__(self, outcomes: list[tuple[Any, Fraction]]) -> None:
        self.outcomes = outcomes


class Script:
    """Answers choices from a script and asks for a new branch where it ends."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.left = list(script)

    def accept(self, target: Fraction, draft: Fraction) -> bool:
        chance = min(Fraction(1), target / draft)
        return bool(self._next([(True, chance), (False, 1 - chance)]))

    def draw(self, law: Any) -> int:
        return int(self._next(list(enumerate(law))))

    def _next(self, outcomes: list[tuple[Any, Fraction]]) -> Any:
        if not self.left:
            raise Branch([(value, weight) for value, weight in outcomes if weight > 0])
        return self.left.pop(0)


def enumerate_all(run: Callable[[Script], Any]) -> Counter[Any]:
    """Exact law of what `run` returns over all its choices."""
    law: Counter[Any] = Counter()
    open_branches: list[tuple[tuple[Any, ...], Fraction]] = [((), Fraction(1))]
    while open_branches:
        script, weight = open_branches.pop()
        try:
            law[run(Script(script))] += weight
        except Branch as branch:
            open_branches += [((*script, v), weight * w) for v, w in branch.outcomes]
    return law


def random_laws(rng: random.Random) -> Laws:
    """A law for every prefix, zeros among them."""
    laws: Laws = {}
    for depth in range(DEPTH + 2):
        for prefix in product(range(VOCABULARY), repeat=depth):
            weights = [rng.choice((0, 1, 2, 5)) for _ in range(VOCABULARY)]
            weights[rng.randrange(VOCABULARY)] += 1
            laws[prefix] = np.array([Fraction(w, sum(weights)) for w in weights], dtype=object)
    return laws


def one_round(target: Laws, draft: Laws, rule: rules.Rule, script: Script) -> tuple[int, ...]:
    """Draft a chain from the draft laws, walk it, and extend it from the target laws."""
    drafted: tuple[int, ...] = ()
    for _ in range(DEPTH):
        drafted += (script.draw(draft[drafted]),)
    prefixes = [drafted[:i] for i in range(DEPTH + 1)]
    tree = Tree.chain([0, *drafted], [draft[p] for p in prefixes])
    path, ending = rules.walk(tree, [target[p] for p in prefixes], rule, lambda _: script)
    block = (*drafted[: len(path) - 1], ending)
    while len(block) < DEPTH + 1:
        block += (script.draw(target[block]),)
    return block


def exact(target: Laws) -> dict[tuple[int, ...], Fraction]:
    law = {}
    for block in product(range(VOCABULARY), repeat=DEPTH + 1):
        weight = Fraction(1)
        for i, token in enumerate(block):
            weight *= target[block[:i]][token]
        if weight:
            law[block] = weight
    return law


@pytest.mark.parametrize("seed", range(8))
def test_a_sampled_chain_has_the_target_law_exactly(seed: int) -> None:
    rng = random.Random(seed)
    target, draft = random_laws(rng), random_laws(rng)
    law = enumerate_all(lambda script: one_round(target, draft, rules.rejection, script))
    assert dict(law) == exact(target)


def no_residual(target: Any, draft: Any, candidates: Sequence[int], chance: Any) -> int:
    if candidates and chance.accept(target[candidates[0]], draft[candidates[0]]):
        return candidates[0]
    return int(chance.draw(target))


def swapped_ratio(target: Any, draft: Any, candidates: Sequence[int], chance: Any) -> int:
    if candidates and chance.accept(
        draft[candidates[0]] * target[candidates[0]], target[candidates[0]] + draft[candidates[0]]
    ):
        return candidates[0]
    return int(chance.draw(rules.residual(target, draft) if candidates else target))


@pytest.mark.parametrize("broken", [no_residual, swapped_ratio])
def test_the_proof_catches_a_broken_rule(broken: rules.Rule) -> None:
    rng = random.Random(0)
    target, draft = random_laws(rng), random_laws(rng)
    law = enumerate_all(lambda script: one_round(target, draft, broken, script))
    assert sum(law.values()) == 1
    assert dict(law) != exact(target)


@pytest.mark.parametrize("seed", range(4))
def test_several_independent_candidates_keep_the_law(seed: int) -> None:
    rng = random.Random(seed)
    target, draft = random_laws(rng)[()], random_laws(rng)[()]

    def run(script: Script) -> int:
        candidates = [script.draw(draft) for _ in range(3)]
        return rules.rejection(target, draft, candidates, script)

    law = enumerate_all(run)
    assert [law[i] for i in range(VOCABULARY)] == list(target)


def test_acceptance_is_the_overlap_of_the_laws() -> None:
    target = np.array([Fraction(2, 10), Fraction(3, 10), Fraction(5, 10)], dtype=object)
    draft = np.array([Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)], dtype=object)

    def run(script: Script) -> bool:
        token = script.draw(draft)
        return rules.rejection(target, draft, [token], script) == token

    assert enumerate_all(run)[True] == Fraction(7, 10)


@pytest.mark.parametrize("seed", range(4))
def test_following_a_deterministic_tree_keeps_the_law(seed: int) -> None:
    target = random_laws(random.Random(seed))
    # Children (0, 1) of the root, (2,) of node 1, (0, 2) of node 2.
    tree = Tree([0, 0, 1, 2, 0, 2], [-1, 0, 0, 1, 2, 2])
    prefixes: list[tuple[int, ...]] = [(), (0,), (1,), (0, 2), (1, 0), (1, 2)]

    def run(script: Script) -> tuple[int, ...]:
        laws = [target[p] for p in prefixes]
        path, ending = rules.walk(tree, laws, rules.follow, lambda _: script)
        block = (*prefixes[path[-1]], ending)
        while len(block) < DEPTH + 1:
            block += (script.draw(target[block]),)
        return block

    assert dict(enumerate_all(run)) == exact(target)
