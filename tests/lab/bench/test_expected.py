"""Predicted acceptance against exact enumeration of drafts and samplers over small vocabularies."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest

from deploy.lab.bench.expected import DraftPosition, along, of_tree
from tests.workers.speculation.exact import (
    Judge,
    Reference,
    Script,
    array,
    constant,
    enumerate_all,
    independent,
    joint,
    node_by_node,
    random_laws,
    top_and_one,
    traversal,
)
from workers.speculation import rejection
from workers.speculation.method import Method

K_SEQ = rejection.k_sequential
COUNT = 3  # tokens of a text
CASES: list[tuple[str, dict[str, Any], Reference, Judge, int]] = [
    ("chain", {"gamma": 2}, independent(1, 2), node_by_node(rejection.independent), 2),
    ("chain", {"gamma": 2, "verification": "block"}, independent(1, 2), traversal, 2),
    (
        "spectr",
        {"count": 2, "gamma": 2},
        independent(2, 2),
        node_by_node(rejection.k_sequential),
        2,
    ),
    (
        "spectr",
        {"count": 3, "gamma": 1},
        independent(3, 1),
        node_by_node(rejection.k_sequential),
        1,
    ),
    (
        "recursive-c",
        {"branching": [2, 1]},
        constant([2, 1]),
        node_by_node(rejection.recursive),
        2,
    ),
    ("recursive-c", {"branching": [3]}, constant([3]), node_by_node(rejection.recursive), 1),
    ("greedy-multi", {"branching": [2]}, top_and_one([2]), node_by_node(rejection.greedy_multi), 1),
]
IDS = [f"{name} {options}" for name, options, *_ in CASES]


def floats(distributions: dict[Any, Any]) -> dict[Any, Any]:
    return {prefix: probs.astype(float) for prefix, probs in distributions.items()}


def needed(case: Any, target: Any, draft: Any, start: tuple[int, ...] = ()) -> float:
    """Rounds until `COUNT` tokens are there, over all drafts and choices."""
    _, _, reference, judge, depth = case
    if len(start) >= COUNT:
        return 0.0

    def one(script: Script) -> tuple[int, ...]:
        cut = {p[len(start) :]: probs for p, probs in draft.items() if p[: len(start)] == start}
        tree = reference(cut, script)
        prefixes: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree)):
            prefixes.append((*prefixes[tree.parents[node]], tree.tokens[node]))
        targets = [target[start + prefix] for prefix in prefixes]
        path, ending = judge(tree, targets, lambda _: script)
        return (*prefixes[path[-1]], ending)

    outputs: Counter[Any] = enumerate_all(one)
    assert depth
    return 1.0 + sum(
        float(weight) * needed(case, target, draft, (start + output)[:COUNT])
        for output, weight in outputs.items()
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rounds_along_texts_are_those_of_all_drafts(case: Any, seed: int) -> None:
    name, options, _, _, depth = case
    rng = random.Random(seed)
    target, draft = (floats(random_laws(rng, 3, COUNT + depth)) for _ in range(2))
    predicted = 0.0
    for text, weight in joint(target, COUNT).items():
        positions = [
            DraftPosition(target[text[:i]], draft[text[:i]], text[i]) for i in range(COUNT)
        ]
        found = along(name, options, positions)
        assert found is not None
        predicted += float(weight) * found
    assert predicted == pytest.approx(needed(case, target, draft), abs=1e-6)


def test_a_perfect_draft_needs_the_fewest_rounds() -> None:
    probs = np.array([0.5, 0.5])
    positions = [DraftPosition(probs, probs, 1)] * 10
    assert along("chain", {"gamma": 4}, positions) == pytest.approx(2)
    assert along("spectr", {"count": 4, "gamma": 4}, positions) == pytest.approx(2)
    assert along("recursive-s", {"width": 4, "gamma": 4}, positions) is None


def test_a_draft_without_a_chance_gains_nothing() -> None:
    positions = [DraftPosition(np.array([1.0, 0.0]), np.array([0.0, 1.0]), 0)] * 5
    for name, options in (
        ("chain", {"gamma": 3}),
        ("chain", {"gamma": 3, "verification": "block"}),
        ("spectr", {"count": 3, "gamma": 3}),
    ):
        assert along(name, options, positions) == pytest.approx(5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("by_path", [False, True])
def test_a_drawn_tree_is_judged_exactly(seed: int, by_path: bool) -> None:
    rng = random.Random(seed)
    target, draft = (floats(random_laws(rng, 3, 3)) for _ in range(2))
    method = cast("Method", _Judging(by_path))
    judge = traversal if by_path else node_by_node(rejection.recursive)
    trees = []

    def drawn(script: Script) -> int:
        trees.append(constant([2, 2])(draft, script))
        return 0

    enumerate_all(drawn)
    for tree in rng.sample(trees, 5):
        prefixes: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree)):
            prefixes.append((*prefixes[tree.parents[node]], tree.tokens[node]))
        targets = [target[prefix] for prefix in prefixes]

        def emitted(script: Script, tree: Any = tree, targets: Any = targets) -> int:
            tokens = [tree.tokens[i] for i in judge(tree, targets, lambda _: script)[0][1:]]
            return tokens.index(2) + 1 if 2 in tokens else len(tokens) + 1

        exact = sum(float(weight) * n for n, weight in enumerate_all(emitted).items())
        assert of_tree(method, tree, targets, stop_token_ids=(2,)) == pytest.approx(exact)


class _Judging:
    """The part of a method that verifies its trees."""

    sampler = staticmethod(rejection.recursive)

    def __init__(self, by_path: bool) -> None:
        self.by_path = by_path


def test_golden_acceptance_of_blocks() -> None:
    """E[accepted] of the research literature's example, token by token and by block."""
    draft, target = (
        array(["1/2", "3/10", "1/5"]).astype(float),
        array(["1/5", "3/10", "1/2"]).astype(float),
    )
    for verification, accepted in (("token", 1.533), ("block", 1.695)):
        goes = 0.0
        for text in np.ndindex(3, 3, 3):
            weight = float(np.prod([target[token] for token in text]))
            positions = [DraftPosition(target, draft, token) for token in text]
            goes += weight * _accepted(positions, verification)
        assert goes == pytest.approx(accepted, abs=1e-6)


def _accepted(positions: list[DraftPosition], verification: str) -> float:
    from deploy.lab.bench.expected import block, independent

    goes = block(positions, 3) if verification == "block" else independent(positions, 1, 3)
    return sum(goes(0, 3))
