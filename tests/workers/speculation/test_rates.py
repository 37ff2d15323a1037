"""Acceptance rates of the rejection against the theory, and against the best that is possible."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.workers.speculation.exact import (
    Reference,
    Script,
    array,
    constant,
    enumerate_all,
    independent,
    random_laws,
    without,
)
from workers.speculation import rejection

SKEWED = array(["1/2", "3/10", "1/5"]), array(["1/5", "3/10", "1/2"])  # draft, target
WIDER = array(["2/5", "3/10", "1/5", "1/10"]), array(["1/10", "1/5", "3/10", "2/5"])
PEAKED = array(["7/10", "1/10", "1/10", "1/10"]), array(["1/4"] * 4)

RATES = [
    # laws, candidates, rho, acceptance of k-seq, of rejection, and without replacement; the best
    # of independent candidates, and of distinct ones
    (SKEWED, 1, 1, 0.7, 0.7, 0.7, 0.7, 0.7),
    (SKEWED, 2, 1.456776, 0.791355, 0.76, 0.82, 0.86, 0.985714),
    (SKEWED, 3, 1.792593, 0.858519, 0.808, 1.0, 0.988, 1.0),
    (WIDER, 2, 1.5, 0.75, 0.72, 0.764286, 0.79, 0.834524),
    (WIDER, 3, 1.9395, 0.79395, 0.768, 0.840298, 0.871, 1.0),
    (PEAKED, 2, 1.537386, 0.711216, 0.685, 1.0, 0.76, 1.0),
]


def rate(draft: Any, target: Any, reference: Reference, rule: rejection.RejectionSampler) -> float:
    """Probability that the token is one of the drafted ones."""

    def run(script: Script) -> bool:
        tree = reference({(): draft}, script)
        path, _ = rejection.verify_by_node(tree, [target] * len(tree), step, lambda _: script)
        return len(path) > 1

    def step(law: Any, drawn_from: Any, candidates: Sequence[int], chance: Any) -> int:
        return rule(law, drawn_from, candidates, chance) if candidates else -1

    return float(enumerate_all(run)[True])


def transport(draft: Any, target: Any, count: int, *, distinct: bool = False) -> float:
    """Optimal transport with membership cost, as the linear program of SpecTr, section 4."""
    lists, mass = [], []
    for drafts in np.ndindex(*(len(draft),) * count):
        weight, law = Fraction(1), draft
        for token in drafts:
            weight *= law[token]
            law = without(law, token) if distinct else law
        if weight:
            lists.append(drafts)
            mass.append(float(weight))
    size = len(target)
    gain = np.array([[-float(y in drafts) for y in range(size)] for drafts in lists])
    rows = np.kron(np.eye(len(lists)), np.ones(size))
    columns = np.kron(np.ones(len(lists)), np.eye(size))
    marginals = np.concatenate([mass, target.astype(float)])
    found = linprog(gain.ravel(), A_eq=np.vstack([rows, columns]), b_eq=marginals)
    return -float(found.fun)


@pytest.mark.parametrize("case", RATES)
def test_rates_are_those_of_the_theory(case: Any) -> None:
    (draft, target), count, root, k_seq, with_replacement, recursive, best, best_distinct = case
    scale = rejection.rho(target.astype(float), draft.astype(float), count)
    assert scale == pytest.approx(root, abs=1e-6)
    beta = float(rejection.overlap(draft.astype(float), target.astype(float) / scale).sum())
    assert 1 - (1 - beta) ** count == pytest.approx(k_seq, abs=1e-6)
    assert 1 - (1 - beta) ** count - scale * beta <= 1e-12
    drawn = independent(count, 1)
    assert rate(draft, target, drawn, rejection.independent) == pytest.approx(with_replacement)
    assert rate(draft, target, constant([count]), rejection.recursive) == pytest.approx(
        recursive, abs=1e-6
    )
    assert transport(draft, target, count) == pytest.approx(best)
    assert transport(draft, target, count, distinct=True) == pytest.approx(best_distinct, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_k_seq_is_within_its_guarantee_of_the_best_transport(seed: int) -> None:
    rng, count = random.Random(seed), 2 + seed % 2
    target, draft = random_laws(rng, 3, 1)[()], random_laws(rng, 3, 1)[()]
    best = transport(draft, target, count)
    ours = rate(draft, target, independent(count, 1), rejection.k_sequential)
    assert (1 - (1 - 1 / count) ** count) * best - 1e-6 <= ours <= best + 1e-6
