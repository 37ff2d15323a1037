"""Drafts have the law that the proof of their method takes for granted."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.types import Sampling
from tests.workers.speculation.exact import (
    Laws,
    Reference,
    Script,
    agrees,
    array,
    beam,
    constant,
    doubting,
    enumerate_all,
    independent,
    likeliest_paths,
    random_laws,
)
from workers.model.sampling import gumbels
from workers.model.tree import Row, Tree
from workers.speculation.drafter import ConfidentExpander, Drafter, IndependentExpander
from workers.speculation.fspad import DynamicTree
from workers.speculation.recursive import GumbelTopK, StochasticBeam


class Table:
    """Stands in for the draft model: logits by the tokens of a path."""

    def __init__(self, laws: Laws, rows: int) -> None:
        self.laws, self.lengths = laws, [3] * rows
        self.cache = SimpleNamespace(lengths=self.lengths)

    def forward(self, slots: list[int], trees: list[Tree], *, skip: list[int]) -> Any:
        known: dict[Any, Any] = {}
        n = max(len(tree) - done for tree, done in zip(trees, skip, strict=True))
        logits = torch.zeros(len(trees), n, len(self.laws[()]))
        for i, (tree, done) in enumerate(zip(trees, skip, strict=True)):
            for node in range(done, len(tree)):
                path = []
                at = node
                while at > 0:  # node 0 is the newest committed token
                    path.append(tree.tokens[at])
                    at = tree.parents[at]
                key = tuple(reversed(path))
                if key not in known:
                    law = torch.tensor([float(p) for p in self.laws[key]])
                    known[key] = law.log()
                logits[i, node - done] = known[key]
        return SimpleNamespace(logits=logits)


SPREADS: list[tuple[Any, Reference, int]] = [
    (lambda rows: IndependentExpander(rows), independent(1, 3), 3),
    (lambda rows: IndependentExpander(rows, 3), independent(3, 2), 2),
    (
        lambda rows, threshold=0.6: ConfidentExpander(rows, threshold),
        doubting(3, Fraction(3, 5)),
        3,
    ),
    (lambda rows: GumbelTopK(rows, (2, 2)), constant([2, 2]), 2),
    (lambda rows: StochasticBeam(rows, 2), beam(2, 3), 3),
    (lambda rows: StochasticBeam(rows, 3), beam(3, 2), 2),
]


def test_nothing_is_drafted_behind_a_token_that_may_end_the_text() -> None:
    laws = random_laws(random.Random(3), 3, 3)
    for threshold in (0.0, 0.6):
        rows = [
            Row(i, [5, 6, 7, 8], Sampling(1.0), i, may_end=lambda token: token == 1)
            for i in range(3000)
        ]
        reference = doubting(3, Fraction(threshold).limit_denominator(10), last={1})
        check_drafts(partial(ConfidentExpander, threshold=threshold), reference, laws, laws, rows)


def check_drafts(
    spread: Any, reference: Reference, told: Laws, asked: Laws, rows: list[Row]
) -> None:
    """A draft model that says the laws `told` drafts by those `asked`, as its reference does."""
    count, depth = len(rows), 1 + max(map(len, told))
    drafter = Drafter.__new__(Drafter)
    drafter.model = Table(told, count)  # type: ignore[assignment]
    drafter.cache = drafter.model.cache
    trees = drafter.grow(rows, [depth] * count, spread(rows))

    def identity(tree: Tree) -> Any:
        return tuple(tree.tokens[1:]), tuple(tree.parents), str(tree.drawn)

    references = {}

    def drafted(script: Any) -> Any:
        tree = reference(asked, script)
        references[identity(tree)] = tree
        return identity(tree)

    exact = enumerate_all(drafted)
    counts = Counter(map(identity, trees))
    assert not set(counts) - set(exact)
    agrees([counts[tree] for tree in exact], [float(exact[tree]) for tree in exact])
    for tree in trees[:20]:
        kept = references[identity(tree)]
        for node in range(len(tree)):
            if kept.children(node):
                expected = torch.tensor([float(p) for p in kept.probs[node]])
                assert torch.allclose(tree.probs[node], expected, atol=1e-6)


@pytest.mark.parametrize(("spread", "reference", "depth"), SPREADS)
@pytest.mark.parametrize("seed", [1, 2])
def test_drafts_have_the_law_that_the_proof_takes_for_granted(
    spread: Any, reference: Reference, depth: int, seed: int
) -> None:
    laws = random_laws(random.Random(seed), 3, depth)
    rows = [Row(i, [5, 6, 7, 8], Sampling(1.0), 100_000 * seed + i) for i in range(3000)]
    check_drafts(spread, reference, laws, laws, rows)


@pytest.mark.parametrize(("width", "nodes"), [(1, 3), (2, 3), (2, 9), (3, 6), (4, 2)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_dynamic_tree_is_that_of_the_proof(width: int, nodes: int, temperature: float) -> None:
    """Without ties between laws; rows of unequal room, one law each, and a token without mass."""
    rng = random.Random(7)
    tables = [random_laws(rng, 4, 3) for _ in range(3)]
    for laws in tables:
        for prefix, law in laws.items():
            noisy = law * array([rng.randrange(9_000, 11_000) for _ in law])
            laws[prefix] = noisy / noisy.sum()
    rooms = [9, 3, 2]
    rows = [Row(i, [5], Sampling(temperature), i, room) for i, room in enumerate(rooms)]
    spread = DynamicTree(rows, width, nodes)
    prefixes: list[list[tuple[int, ...]]] = [[()] for _ in rows]
    for level in range(3):
        most = max(map(len, prefixes))
        logits = torch.zeros(3, most, 4)
        for i, mine in enumerate(prefixes):
            for place, prefix in enumerate(mine):
                law = tables[i][prefix]
                logits[i, place] = torch.tensor([float(p) for p in law]).log()
        children, drawn = spread(level, logits, [list(range(len(mine))) for mine in prefixes])
        assert drawn is None
        prefixes = [
            [(*mine[parent], token) for parent, token in made]
            for mine, made in zip(prefixes, children, strict=True)
        ]
        assert all(len(mine) <= width for mine in prefixes)
    for laws, room, tree in zip(tables, rooms, spread.trees(), strict=True):
        expected = likeliest_paths(width, nodes, min(3, room - 1))(laws, Script())
        assert paths(tree) == paths(expected)
        assert len(tree) <= 1 + nodes
        assert tree.tokens[0] == 5
        assert tree.probs is None
        assert all(parent < node for node, parent in enumerate(tree.parents))


def paths(tree: Tree) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
        found.append((*found[parent], token))
    return set(found)


def test_equal_scores_keep_a_child_behind_its_parent() -> None:
    """A sure token costs nothing, so that a whole path has one score."""
    spread = DynamicTree([Row(0, [5], Sampling(), 0)], 2, 3)
    sure = torch.full((1, 1, 6), -torch.inf)
    sure[..., 2] = 0
    for level in range(5):
        spread(level, sure, [[0]])
    (tree,) = spread.trees()
    assert tree.tokens == [5, 2, 2, 2]
    assert tree.is_chain


def test_logits_of_nan_draft_nothing() -> None:
    rows = [Row(i, [5], Sampling(float(i)), 0) for i in range(2)]
    spread = DynamicTree(rows, 2, 3)
    assert spread(0, torch.full((2, 1, 6), torch.nan), [[0], [0]]) == ([[], []], None)
    assert [len(tree) for tree in spread.trees()] == [1, 1]


def test_gumbel_numbers_are_independent_standard_ones() -> None:
    noise = gumbels(list(range(40)), 500)
    assert torch.equal(noise[3:5], gumbels([3, 4], 500))  # a stream belongs to its key
    assert torch.equal(noise[:, :7], gumbels(list(range(40)), 7))
    uniforms = torch.exp(-torch.exp(-noise)).flatten()
    histogram = torch.histc(uniforms, bins=50, min=0, max=1)
    agrees(histogram.tolist(), [1 / 50] * 50)
    correlation = torch.corrcoef(torch.stack([uniforms[:-1], uniforms[1:]]))[0, 1]
    assert abs(float(correlation)) < 5 / len(uniforms) ** 0.5
    assert bool(noise.isfinite().all())


@pytest.mark.parametrize(("spread", "reference", "depth"), SPREADS)
def test_a_round_drafts_with_numbers_of_its_own(spread: Any, reference: Any, depth: int) -> None:
    """Two rounds cover the same positions. With the numbers of the position, the second would be
    drawn with the numbers of what was rejected."""
    count, vocabulary = 400, 64
    same = 0
    flat = torch.zeros(count, 1, vocabulary)
    earlier = [Row(i, [5, 6, 7], Sampling(1.0), i) for i in range(count)]
    later = [Row(i, [5, 6, 7, 8], Sampling(1.0), i) for i in range(count)]
    if "threshold" in inspect.signature(spread).parameters:  # of a flat law it is never sure
        spread = partial(spread, threshold=0.01)
    first = spread(earlier)
    below, _ = first(0, flat, [[0]] * count)
    width = max(map(len, below))
    deeper, _ = first(1, flat.expand(-1, width, -1), [list(range(width))] * count)
    now, _ = spread(later)(0, flat, [[0]] * count)
    for old, new in zip(deeper, now, strict=True):
        same += old[-1][1] == new[-1][1]
    assert same < 0.1 * count  # one in 64 is expected
