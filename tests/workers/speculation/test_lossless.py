"""The law of what comes out is the target's: proved by enumeration, with fractions.

A walk takes its random choices through `chance`; an enumerator in its place follows every outcome
with its exact probability. A round emits between one token and depth + 1; the block is extended
to full depth with the target's own law, and the result must equal it exactly. Here methods judge
drafts made by definition; `test_drafts.py` shows that what they draft themselves has that law.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.workers.conftest import head_folder, make_adapter, make_model, network_of
from tests.workers.speculation.exact import (
    Judge,
    Laws,
    Prefix,
    Reference,
    Script,
    array,
    beam,
    certain,
    constant,
    doubting,
    enumerate_all,
    independent,
    joint,
    likeliest_paths,
    node_by_node,
    random_laws,
    without,
)
from workers.model.target import Target
from workers.model.tree import Tree
from workers.speculation import METHODS, build, rejection
from workers.speculation.method import Method

# Methods, the drafts that they stand for, vocabulary, depth.
PROOFS: list[tuple[str, Reference, int, int]] = [
    ("vanilla", certain([]), 3, 2),
    ("chain", independent(1, 2), 3, 2),
    ("chain", independent(1, 3), 3, 3),
    ("chain", doubting(3, Fraction(3, 5)), 3, 3),
    ("chain", doubting(3, Fraction(1, 3), last={1}), 3, 3),
    ("lookup", certain([1, 1, 1]), 3, 3),
    ("spectr", independent(3, 1), 4, 1),
    ("spectr", independent(2, 2), 3, 2),
    ("recursive-c", constant([3]), 4, 1),
    ("recursive-c", constant([2, 2]), 3, 2),
    ("recursive-c", constant([2, 1, 2]), 2, 3),
    ("recursive-s", beam(2, 2), 3, 2),
    ("recursive-s", beam(3, 2), 3, 2),
    ("recursive-s", beam(2, 3), 2, 3),
    ("kangaroo", doubting(2, Fraction(1, 2)), 3, 2),
    ("kangaroo", doubting(3, Fraction(3, 5)), 3, 3),
    ("fspad", likeliest_paths(2, 3, 2), 3, 2),
    ("fspad", likeliest_paths(3, 5, 2), 3, 2),
    ("fspad", likeliest_paths(2, 5, 3), 2, 3),
]
IDS = [f"{name}-{v}^{d}" for name, _, v, d in PROOFS]


@cache
def method(name: str) -> Method:
    """The method as it serves; its models stay unused."""
    network, options = network_of(make_model(vocabulary=8)), dict[str, Any]()
    target = Target(network, slots=1, max_len=8)
    if "draft" in inspect.signature(METHODS[name]).parameters:
        options["draft"] = "any"
    if "adapter" in inspect.signature(METHODS[name]).parameters:
        options["adapter"] = make_adapter()
    if name == "fspad":
        options["head"] = head_folder(vocabulary=8)
    return build(name, target, lambda _: network, **options)


@pytest.fixture(autouse=True)
def rational_rho(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any rho above the root keeps the law: the next fraction above the float, found once."""
    original = rejection.rho

    @cache
    def found(target: Prefix, draft: Prefix, count: int) -> Fraction:
        root = original(np.array(target, dtype=float), np.array(draft, dtype=float), count)
        return Fraction(math.ceil(root * 2**20 + 1), 2**20) if root > 1 else Fraction(1)

    monkeypatch.setattr(rejection, "rho", lambda t, d, count: found(tuple(t), tuple(d), count))


def emitted(
    target: Laws, draft: Laws, reference: Reference, judge: Judge, depth: int
) -> Counter[Prefix]:
    """Law of the tokens of one round, extended to depth + 1 with the target's own law."""
    trees: dict[Any, tuple[Tree, Fraction]] = {}

    def drafted(script: Script) -> Any:
        tree = reference(draft, script)
        identity = (tuple(tree.tokens), tuple(tree.parents), str(tree.drawn))
        trees[identity] = (tree, Fraction(0))
        return identity

    law: Counter[Prefix] = Counter()
    for identity, weight in enumerate_all(drafted).items():
        tree = trees[identity][0]
        prefixes: list[Prefix] = [()]
        for node in range(1, len(tree)):
            prefixes.append((*prefixes[tree.parents[node]], tree.tokens[node]))
        targets = [target[prefix] for prefix in prefixes]

        def block(
            script: Script, tree: Any = tree, targets: Any = targets, p: Any = prefixes
        ) -> Any:
            path, ending = judge(tree, targets, lambda _: script)
            return (*p[path[-1]], ending)

        for tokens, chance in enumerate_all(block).items():
            law[tokens] += weight * chance
    full: Counter[Prefix] = Counter()
    for tokens, weight in law.items():
        for whole, chance in joint(target, depth + 1, tokens).items():
            full[whole] += weight * chance
    return full


def laws_for(seed: int, vocabulary: int, depth: int) -> tuple[Laws, Laws]:
    """Target and draft; every other seed cuts both by top-p."""
    rng = random.Random(seed)
    top_p = Fraction(3, 4) if seed % 2 else None
    return (
        random_laws(rng, vocabulary, depth + 1, top_p),
        random_laws(rng, vocabulary, depth + 1, top_p),
    )


def test_every_lossless_method_is_proved() -> None:
    lossless = {name for name, made in METHODS.items() if made.lossless}  # type: ignore[attr-defined]
    # auto chooses among them, by what has been decided already: test_auto.py.
    assert lossless == {name for name, *_ in PROOFS} | {"auto"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("proof", PROOFS, ids=IDS)
def test_the_law_is_the_target_law_exactly(proof: Any, seed: int) -> None:
    name, reference, vocabulary, depth = proof
    target, draft = laws_for(seed, vocabulary, depth)
    law = emitted(target, draft, reference, method(name).verify_tree, depth)
    assert dict(law) == dict(joint(target, depth + 1))


# What must fail --------------------------------------------------------------------------


def no_residual(target: Any, draft: Any, candidates: Sequence[int], chance: Any) -> int:
    for token in candidates:
        if chance.accept(target[token], draft[token]):
            return token
    return int(chance.draw(target))


def swapped_ratio(target: Any, draft: Any, candidates: Sequence[int], chance: Any) -> int:
    for token in candidates:
        if chance.accept(draft[token], draft[token] + target[token]):
            return token
    return int(chance.draw(rejection.residual(target, draft) if candidates else target))


def residual_of_the_first_law(target: Any, draft: Any, candidates: Any, chance: Any) -> int:
    """Subtracts what the first sibling was drawn from, for all of them."""
    left = draft
    for token in candidates:
        if chance.accept(target[token], left[token]):
            return int(token)
        target, left = rejection.residual(target, draft), without(left, token)
    return int(chance.draw(target))


def residual_at_the_token(target: Any, draft: Any, candidates: Any, chance: Any) -> int:
    """Subtracts the draft law at the rejected token only."""
    for token in candidates:
        if chance.accept(target[token], draft[token]):
            return int(token)
        target, draft = without(target, token), without(draft, token)
    return int(chance.draw(target))


def one_law_for_all(target: Any, draft: Any, candidates: Any, chance: Any) -> int:
    """Treats draws without replacement, or distinct independent ones, as independent draws."""
    return rejection.independent(target, draft, list(dict.fromkeys(candidates)), chance)


def small_rho(target: Any, draft: Any, candidates: Any, chance: Any) -> int:
    count = len(candidates)
    if not count:
        return int(chance.draw(target))
    scale = 1 + (rejection.rho(target, draft, count) - 1) / 2
    for token in candidates:
        if chance.accept(target[token], scale * draft[token]):
            return int(token)
    kept = rejection.overlap(draft, target / scale)
    refused = 1 - kept.sum()
    rest = (target - kept * sum(refused**i for i in range(count))).clip(min=0)
    return int(chance.draw(rest / rest.sum() if rest.sum() else target))


def resorted(reference: Reference) -> Reference:
    """Siblings in the order of the draft law instead of the draws."""

    def draft(laws: Laws, script: Script) -> Tree:
        tree = reference(laws, script)
        assert tree.drawn is not None
        drawn = [
            sorted(nodes, key=lambda n, law=law: -law[tree.tokens[n]] if law is not None else 0)
            for law, nodes in zip(tree.probs, tree.drawn, strict=True)
        ]
        return replace(tree, drawn=drawn)

    return draft


def pruned(reference: Reference, most: int) -> Reference:
    """Of the drawn first level, the `most` likeliest only."""

    def draft(laws: Laws, script: Script) -> Tree:
        tree = reference(laws, script)
        best = sorted(tree.children(0), key=lambda n: -tree.probs[0][tree.tokens[n]])[:most]
        return Tree(
            [0, *(tree.tokens[n] for n in sorted(best))], [-1] + [0] * len(best), tree.probs
        )

    return draft


def softmax_of_top_k(laws: Laws, script: Script) -> Tree:
    tree = certain([2, 2])(laws, script)
    prefixes: list[Prefix] = [()]
    for node in range(1, len(tree)):
        prefixes.append((*prefixes[tree.parents[node]], tree.tokens[node]))
    floor = array([Fraction(1, 100)] * len(laws[()]))  # so that no drafted token is impossible
    return replace(tree, probs=[(laws[p] + floor) / (laws[p] + floor).sum() for p in prefixes])


BROKEN: dict[str, tuple[Reference, Judge, int, int]] = {
    "no residual": (independent(1, 2), node_by_node(no_residual), 3, 2),
    "swapped ratio": (independent(1, 2), node_by_node(swapped_ratio), 3, 2),
    "residual at the token": (independent(1, 2), node_by_node(residual_at_the_token), 3, 2),
    "residual of the first law": (constant([2, 2]), node_by_node(residual_of_the_first_law), 3, 2),
    "siblings as independent": (constant([2, 2]), node_by_node(one_law_for_all), 3, 2),
    "duplicates dropped": (independent(3, 1), node_by_node(one_law_for_all), 3, 1),
    "siblings re-sorted": (resorted(constant([2, 2])), node_by_node(rejection.recursive), 3, 2),
    "beam re-sorted": (resorted(beam(3, 2)), node_by_node(rejection.recursive), 3, 2),
    "likeliest draws kept": (pruned(constant([3]), 2), node_by_node(rejection.recursive), 4, 1),
    "softmax law of top-k drafts": (softmax_of_top_k, node_by_node(rejection.recursive), 3, 2),
    "rho too small": (independent(2, 2), node_by_node(small_rho), 3, 2),
    "distinct draws by k-seq": (constant([2, 2]), node_by_node(rejection.k_sequential), 3, 2),
    "unlikely drafts dropped": (
        doubting(2, Fraction(1, 3), by_token=True),
        node_by_node(rejection.independent),
        3,
        2,
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_proof_catches(broken: str) -> None:
    reference, judge, vocabulary, depth = BROKEN[broken]
    for seed in range(0, 12, 2):
        rng = random.Random(seed)
        target = random_laws(rng, vocabulary, depth + 1)
        draft = {
            prefix: (law + Fraction(1, 5)) / (law + Fraction(1, 5)).sum()  # without zeros
            for prefix, law in random_laws(rng, vocabulary, depth + 1).items()
        }
        law = emitted(target, draft, reference, judge, depth)
        assert sum(law.values()) == 1
        if dict(law) != dict(joint(target, depth + 1)):
            return
    raise AssertionError("the law of a broken method was taken for the target's")
