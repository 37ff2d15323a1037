"""Exact enumeration in fractions: every outcome of a random procedure with its probability.

And what methods draft, as definitions instead of tensors: `reference drafts` take their choices
from a script, so that their law can be enumerated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import chi2

from workers.model.tree import Tree
from workers.speculation import rejection

Prefix = tuple[int, ...]
Law = Any  # one-dimensional array of fractions
Laws = dict[Prefix, Law]
Judge = Callable[[Tree, Any, Callable[[int], Any]], tuple[list[int], int]]
ERROR = 1e-5  # of one chi-square test; the seeds are fixed, so it passes or fails for good


class Branch(Exception):
    """A choice that the replayed script does not cover: its outcomes and their weights."""

    def __init__(self, outcomes: list[tuple[Any, Fraction]]) -> None:
        self.outcomes = outcomes


class Script:
    """Answers choices from a script and asks for a new branch where it ends."""

    def __init__(self, script: Sequence[Any] = ()) -> None:
        self.left = list(script)

    def accept(self, target: Any, draft: Any) -> bool:
        chance = min(Fraction(1), Fraction(target) / Fraction(draft))
        return bool(self._next([(True, chance), (False, 1 - chance)]))

    def draw(self, law: Law) -> int:
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


def array(values: Sequence[Any]) -> Law:
    return np.array([Fraction(value) for value in values], dtype=object)


def random_laws(rng: Any, vocabulary: int, depth: int, top_p: Fraction | None = None) -> Laws:
    """A law for every prefix shorter than `depth`, zeros among them."""
    laws: Laws = {}
    for length in range(depth):
        for prefix in product(range(vocabulary), repeat=length):
            weights = [rng.choice((0, 1, 2, 5)) for _ in range(vocabulary)]
            weights[rng.randrange(vocabulary)] += 1
            law = array([Fraction(w, sum(weights)) for w in weights])
            laws[prefix] = law if top_p is None else nucleus(law, top_p)
    return laws


def nucleus(law: Law, top_p: Fraction) -> Law:
    """The smallest set of the likeliest tokens that reaches `top_p`, renormalised."""
    kept, before = law * 0, Fraction(0)
    for token in sorted(range(len(law)), key=lambda i: -law[i]):
        if before < top_p:
            kept[token] = law[token]
        before += law[token]
    return kept / kept.sum()


def joint(laws: Laws, depth: int, start: Prefix = ()) -> Counter[Prefix]:
    """Law of the sequences of `depth` tokens that begin with `start`."""
    law: Counter[Prefix] = Counter({start: Fraction(1)})
    for _ in range(depth - len(start)):
        law = Counter(
            {
                (*prefix, token): weight * p
                for prefix, weight in law.items()
                for token, p in enumerate(laws[prefix])
                if p
            }
        )
    return law


# Reference drafts -------------------------------------------------------------------------


Reference = Callable[[Laws, Script], Tree]


class Sketch:
    """A tree while it is drawn, with the prefix behind each node."""

    def __init__(self, laws: Laws) -> None:
        self.all, self.tree, self.prefixes = laws, Tree([0], [-1]), [()]
        self.laws: dict[int, Law] = {}
        self.drawn: list[list[int]] = [[]]

    def child(self, node: int, token: int) -> int:
        """The child of a node with that token, made if there is none."""
        prefix = (*self.prefixes[node], token)
        if prefix not in self.prefixes:
            self.tree.tokens.append(token)
            self.tree.parents.append(node)
            self.prefixes.append(prefix)
            self.drawn.append([])
        found = self.prefixes.index(prefix)
        self.drawn[node].append(found)
        return found

    def law(self, node: int) -> Law:
        return self.all[self.prefixes[node]]

    def done(self) -> Tree:
        """Laws of the nodes with children as drawn from, or those noted in `self.laws`."""
        self.tree.drawn = self.drawn
        self.tree.probs = [
            self.laws.get(node, self.all.get(self.prefixes[node])) for node in range(len(self.tree))
        ]
        return self.tree


def without(law: Law, token: int) -> Law:
    rest = law.copy()
    rest[token] = Fraction(0)
    return rest / rest.sum() if rest.sum() else rest


def independent(count: int, depth: int) -> Reference:
    """`count` sequences, token by token."""

    def draft(laws: Laws, script: Script) -> Tree:
        sketch, nodes = Sketch(laws), [0] * count
        for _ in range(depth):
            drawn = [(node, script.draw(sketch.law(node))) for node in nodes]
            nodes = [sketch.child(node, token) for node, token in drawn]
        return sketch.done()

    return draft


def doubting(
    depth: int, threshold: Fraction, *, last: Collection[int] = (), by_token: bool = False
) -> Reference:
    """One sequence that ends behind the first token drawn from a law without a likely one, or
    behind the first of the `last` tokens.

    `by_token` is wrong: it ends before the first token that is unlikely itself.
    """

    def draft(laws: Laws, script: Script) -> Tree:
        sketch, node = Sketch(laws), 0
        for _ in range(depth):
            law = sketch.law(node)
            token = script.draw(law)
            if by_token and law[token] < threshold:
                break
            node = sketch.child(node, token)
            if token in last or (not by_token and max(law) < threshold):
                break
        return sketch.done()

    return draft


def constant(branching: Sequence[int]) -> Reference:
    """Distinct children of every node, drawn one after the other."""

    def draft(laws: Laws, script: Script) -> Tree:
        sketch, nodes = Sketch(laws), [0]
        for count in branching:
            level = []
            for node in nodes:
                law = sketch.law(node)
                for _ in range(count):
                    if law.sum():
                        token = script.draw(law)
                        level.append(sketch.child(node, token))
                        law = without(law, token)
            nodes = level
        return sketch.done()

    return draft


def beam(width: int, depth: int) -> Reference:
    """Stochastic beam search without its noise.

    Perturbed log-probabilities rank all sequences as draws without replacement do, and a
    beginning ranks as its best continuation. So sequences are drawn until every level has its
    `width` distinct beginnings; deeper levels fill first, and draws that add none are left out.
    """

    def draft(laws: Laws, script: Script) -> Tree:
        levels: list[list[Prefix]] = [[] for _ in range(depth)]
        for length in range(depth, 0, -1):
            left = {p: w for p, w in joint(laws, length).items() if p not in levels[length - 1]}
            while left and len(levels[length - 1]) < width:
                total, choices = sum(left.values()), list(left)
                chosen = choices[script.draw([left[p] / total for p in choices])]
                del left[chosen]
                for size, level in enumerate(levels[:length], start=1):
                    beginning = chosen[:size]
                    if beginning not in level and len(level) < width:
                        level.append(beginning)
        sketch = Sketch(laws)
        for level in levels:
            for prefix in level:
                if prefix[:-1] in sketch.prefixes:
                    sketch.child(sketch.prefixes.index(prefix[:-1]), prefix[-1])
        return sketch.done()

    return draft


def certain(branching: Sequence[int]) -> Reference:
    """The likeliest tokens alone: a function of the prefix."""

    def draft(laws: Laws, script: Script) -> Tree:
        sketch, nodes = Sketch(laws), [0]
        for count in branching:
            nodes = [
                sketch.child(node, token)
                for node in nodes
                for token in likeliest(sketch.law(node))[:count]
            ]
        tree = sketch.done()
        tree.probs = None
        return tree

    return draft


def likeliest_paths(width: int, nodes: int, depth: int) -> Reference:
    """The dynamic tree of EAGLE-2: the `nodes` likeliest tokens behind each level's `width`."""

    def draft(laws: Laws, script: Script) -> Tree:
        seen: list[tuple[Fraction, Prefix]] = []
        level: list[tuple[Fraction, Prefix]] = [(Fraction(1), ())]
        for _ in range(depth):
            below = [
                (weight * laws[prefix][token], (*prefix, token))
                for weight, prefix in level
                for token in likeliest(laws[prefix])[:width]
                if laws[prefix][token]
            ]
            below.sort(key=lambda one: -one[0])
            seen += below
            level = below[:width]
        sketch = Sketch(laws)
        best = sorted(seen, key=lambda one: -one[0])[:nodes]
        for _, prefix in sorted(best, key=lambda one: len(one[1])):
            sketch.child(sketch.prefixes.index(prefix[:-1]), prefix[-1])
        return replace(sketch.done(), probs=None, drawn=None)

    return draft


def likeliest(law: Law) -> list[int]:
    return sorted(range(len(law)), key=lambda token: -law[token])


# Judging, and comparing -------------------------------------------------------------------


def node_by_node(rule: rejection.RejectionSampler) -> Judge:
    return lambda tree, targets, chance_at: rejection.verify_by_node(tree, targets, rule, chance_at)


def agrees(counts: Any, law: Any) -> None:
    """Chi-square test of counts against a law; thin cells are put together."""
    observed, expected = np.array(counts, float), np.array(law, float) * np.sum(counts)
    assert observed[expected == 0].sum() == 0
    thin = expected < 5
    observed = np.append(observed[~thin], observed[thin].sum())
    expected = np.append(expected[~thin], expected[thin].sum())
    keep = expected > 0
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert chi2.sf(statistic, max(1, keep.sum() - 1)) > ERROR
