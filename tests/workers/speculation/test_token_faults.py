"""Faults of the token laws, put into the real code one by one: each must be caught.

A fault here changes one expression of a function that serves, so nothing can drift from what it
imitates; every check passes on the code as it is and fails on the fault. Most of these faults emit
plausible text, and some differ at one number in 2^53, so that no sample would ever show them.
"""

from __future__ import annotations

import inspect
import random
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.types import Sampling
from tests.workers.speculation.exact import (
    Laws,
    Prefix,
    Reference,
    Script,
    array,
    constant,
    enumerate_all,
    independent,
    joint,
    nucleus,
    random_laws,
)
from tests.workers.speculation.loops import decoder
from tests.workers.speculation.test_drafts import SPREADS, check_drafts
from tests.workers.speculation.test_lossless import method
from tests.workers.speculation.test_methods import OPTIONS
from workers import rng
from workers.model import sampling
from workers.model.sampling import KeyedRng, drop_unlikely, warp
from workers.model.tree import Plan, Row, Tree
from workers.speculation import drafter, rejection
from workers.speculation import method as base
from workers.speculation.drafter import IndependentExpander, row_probs
from workers.speculation.method import Method
from workers.speculation.recursive import GumbelTopK, StochasticBeam

# Laws by enumeration of the numbers ---------------------------------------------------------

GRID = 4
# With these laws every chance of a test, and every sum that a draw looks up, is a multiple of
# 1 / GRID, and floats hold it exactly. So the numbers between two multiples all decide as the lower
# one does, and to go through the multiples, 0 among them, is to go through all 2^53 numbers.
QUARTERS = array(["1/4"] * 4)
PAIRS = [  # draft and target, at each depth
    (array(["1/2", "1/4", "1/8", "1/8"]), array(["1/4", "5/16", "3/16", "1/4"])),
    (array(["1/2", "1/2", 0, 0]), QUARTERS),
    (QUARTERS, QUARTERS),
    (QUARTERS, QUARTERS),
]
DRAFT, TARGET = (
    {p: pair[side] for n, pair in enumerate(PAIRS) for p in np.ndindex(*(4,) * n)}
    for side in (0, 1)
)


def law_of_a_round(name: str, reference: Reference, depth: int) -> None:
    """A round by the method's own verification and a plain draw behind it have the target's law.

    A number that is asked for again is what it was, so what reuses one is not independent.
    """
    made = method(name)

    def run(script: Script) -> Prefix:
        known: dict[Any, float] = {}

        def number(seed: int, position: int, purpose: int = rng.DRAW, *counters: int) -> float:
            use = (seed, position, purpose, *counters)
            if use not in known:
                known[use] = script.draw(QUARTERS) / GRID
            return known[use]

        tree = reference(DRAFT, script)
        prefixes: list[Prefix] = [()]
        for node in range(1, len(tree)):
            prefixes.append((*prefixes[tree.parents[node]], tree.tokens[node]))
        tree.probs = torch.tensor(np.array(tree.probs, dtype=float))
        targets = torch.tensor(np.array([TARGET[p] for p in prefixes], dtype=float))
        row = Row(0, [0], Sampling(1.0), 0)
        with pytest.MonkeyPatch.context() as patch:
            for module in (sampling, base):
                patch.setattr(module, "uniform", number)
            tokens = made._verify_sampled(row, tree, targets).tokens
            row.ids.extend(tokens)
            behind = torch.tensor(TARGET[tuple(tokens)].astype(float))
            alone = Plan([row], [Tree([row.ids[-1]], [-1])])
            plain = made._draw_all(alone, behind[None, None], [0])[0]
        return (*tokens, *plain.tokens)

    law: Counter[Prefix] = Counter()
    for tokens, weight in enumerate_all(run).items():
        for whole, chance in joint(TARGET, depth + 2, tokens).items():
            law[whole] += weight * chance
    expected = joint(TARGET, depth + 2)
    wrong = [tokens for tokens in law | expected if law[tokens] != expected[tokens]]
    assert not wrong


def impossible_tokens_are_refused() -> None:
    """Whatever the number: also at 0, where a test that is not strict lets a token pass that the
    target never says, and where rounding has left a drafted token no mass under either law."""
    with pytest.MonkeyPatch.context() as patch:
        for number in (0.0, 0.5, 1 - 2.0**-53):
            patch.setattr(sampling, "uniform", lambda *_, number=number: number)
            assert not KeyedRng(0, 0).accept(0.0, 0.5)
            assert not KeyedRng(0, 0).accept(0.0, 0.0)
            assert KeyedRng(0, 0).accept(0.5, 0.5)


# Numbers and their uses ---------------------------------------------------------------------


def numbers_are_used_once(name: str, options: dict[str, Any]) -> None:
    """From the first token to the last, which is a plain draw: no draft has room there."""
    used: Counter[int] = Counter()

    def spy(*use: int, key: Any = rng.key) -> int:
        number: int = key(*use)
        used[number] += 1
        return number

    loop = decoder(name, options, slots=1, vocabulary=5)
    with pytest.MonkeyPatch.context() as patch:
        for module in (rng, drafter):
            patch.setattr(module, "key", spy)
        for seed in range(8):
            generate(loop, [[1, 2, 3]], 12, sampling=Sampling(1.0, seed=seed))
    assert len(used) >= 8 * 12
    assert max(used.values()) == 1


def a_plain_draw_is_that_of_a_walk() -> None:
    """Any number that has no other use keeps the law, but this one keeps the promise that a row's
    tokens do not depend on whether its neighbours have drafts."""
    rows = [Row(i, [0] * (1 + i % 3), Sampling(1.0), 50 + i) for i in range(40)]
    trees, probs = [Tree([0], [-1])] * 40, torch.full((40, 1, 64), 1 / 64)
    drawn = Method._draw_all(Plan(rows, trees), probs, list(range(40)))
    walked = [
        method("vanilla")._verify_sampled(row, *one)
        for row, *one in zip(rows, trees, probs, strict=True)
    ]
    assert [one.tokens for one in drawn] == [one.tokens for one in walked]


# Laws of drafts and of candidates -----------------------------------------------------------


def drafts_have_the_law_asked_for(spread: Any, reference: Reference, depth: int) -> None:
    """At temperature 1/2 a law is its square, so the definition needs no floats; then top-p."""
    told = random_laws(random.Random(5), 3, depth)
    asked: Laws = {p: nucleus(law**2 / (law**2).sum(), Fraction(4, 5)) for p, law in told.items()}
    rows = [Row(i, [5, 6, 7, 8], Sampling(0.5, top_p=0.8), i) for i in range(800)]
    check_drafts(spread, reference, told, asked, rows)


def top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    """The token that reaches p is among them, and none behind it; p is met exactly by quarters."""
    skewed = array(["3/10", "1/2", "1/20", "3/20"])
    cases = ((QUARTERS, ("1/4", "1/2", "3/4")), (skewed, ("1/5", "3/5", "7/10", "9/10")))
    for law, tops in cases:
        for top in tops:
            p = Fraction(top)
            logits = torch.tensor(law.astype(float)).log()[None, None]
            warped = warp(logits, [Sampling(1.0, top_p=float(p))])[0, 0].double()
            expected = torch.tensor(nucleus(law, p).astype(float))
            assert torch.equal(warped > 0, expected > 0)
            assert torch.allclose(warped, expected, atol=1e-6)


def k_seq_keeps_the_law_by_its_own_root() -> None:
    """With the root that serves: from above the law is exact, from below it is off by what the
    ends of the bracket are apart. And it is no larger than it must be."""
    for seed in range(8):
        count, made = 2 + seed % 2, random.Random(seed)
        draft, target = (random_laws(made, 3, 1)[()] for _ in range(2))
        root = Fraction(rejection.rho(target.astype(float), draft.astype(float), count))
        for scale, above in ((root, True), (root - Fraction(1, 10**6), root == 1)):
            beta = rejection.overlap(draft, target / scale).sum()
            assert (1 - (1 - beta) ** count - scale * beta <= 1e-12) == above

        def run(script: Script, q: Any = draft, p: Any = target, n: int = count) -> int:
            candidates = [script.draw(q) for _ in range(n)]
            return rejection.k_sequential(p, q, candidates, script)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rejection, "rho", lambda *_, root=root: root)
            law = enumerate_all(run)
        assert max(abs(law[token] - p) for token, p in enumerate(target)) < 1e-12


# The faults ---------------------------------------------------------------------------------

Check = Callable[[], None]
CHAIN, TREE = (
    partial(law_of_a_round, "chain", independent(1, 2), 2),
    partial(law_of_a_round, "recursive-c", constant([2]), 1),
)
ONCE = {case[0]: partial(numbers_are_used_once, *case) for case in OPTIONS}
DRAFTS = [partial(drafts_have_the_law_asked_for, *spread) for spread in SPREADS]

# The function, what of it is replaced by what, and the checks that must each catch it.
FAULTS: dict[str, tuple[Callable[..., Any], str, str, Sequence[Check]]] = {
    "a test passes at equality": (
        KeyedRng.accept, "float(draft) < float", "float(draft) <= float",
        [CHAIN, TREE, impossible_tokens_are_refused],
    ),
    # With the next two the text keeps its law, for verification is told what was drawn from: only
    # acceptance is lost.
    "drafts ignore top-p": (
        row_probs, "else row.sampling", "else Sampling(row.sampling.temperature)", DRAFTS,
    ),
    "drafts at temperature 1": (
        row_probs, "else row.sampling", "else Sampling(1.0, row.sampling.top_p)", DRAFTS,
    ),
    "drafts at temperature 1 and told as asked": (
        IndependentExpander.__call__, "draw(probs[", "draw(logits.softmax(-1)[", DRAFTS[:3],
    ),
    "a plain draw by the number of the round's last": (
        Method._draw_all, "len(row.ids))", "len(row.ids) - 1)",
        [CHAIN, TREE, ONCE["chain"], ONCE["recursive-c"], a_plain_draw_is_that_of_a_walk],
    ),
    # No round both draws plainly and drafts or tests there, so with the next two the law is kept.
    "a plain draw by a draft's number": (
        Method._draw_all, "len(row.ids))", "len(row.ids), 1, 0, 0)",
        [a_plain_draw_is_that_of_a_walk],
    ),
    "a plain draw by a test's number": (
        Method._draw_all, "len(row.ids))", "len(row.ids), 2)", [a_plain_draw_is_that_of_a_walk],
    ),
    "gumbel top-k untempered": (
        GumbelTopK.__call__, "probs.log()", "logits.log_softmax(-1)", DRAFTS[3:4],
    ),
    "gumbel beam untempered": (
        StochasticBeam.__call__, "probs.double().log()", "logits.double().log_softmax(-1)",
        DRAFTS[4:6],
    ),
    "k-seq by the lower end of its bracket": (
        rejection.rho, "return high", "return low", [k_seq_keeps_the_law_by_its_own_root],
    ),
    "a residual by its test's number": (
        KeyedRng.draw, "self.position)", "self.position, ACCEPT)",
        [CHAIN, ONCE["chain"], ONCE["recursive-c"]],
    ),
    "siblings share one number": (
        KeyedRng.accept, "self.tests += 1", "self.tests += 0",
        [TREE, ONCE["recursive-c"]],
    ),
    "top-p one token short": (
        drop_unlikely, "probs.cumsum(-1) - probs >=", "probs.cumsum(-1) >=",
        [top_p_keeps_the_smallest_set_that_reaches_it, *DRAFTS],
    ),
    "a walk at one position": (
        rejection.verify_by_node, "rng_at(len(path))", "rng_at(1)",
        [CHAIN, ONCE["chain"], ONCE["recursive-c"]],
    ),
}  # fmt: skip
CHECKS = dict.fromkeys(
    [*ONCE.values(), *(check for fault in FAULTS.values() for check in fault[-1])]
)


def check_id(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


def put_in(monkeypatch: pytest.MonkeyPatch, function: Any, old: str, new: str) -> None:
    """Change the function itself, whoever has imported it under whatever name."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has changed: put the fault in anew"
    made = dict(function.__globals__)
    exec("from __future__ import annotations\n" + source.replace(old, new), made)
    changed = inspect.unwrap(made[function.__name__])
    monkeypatch.setattr(function, "__code__", changed.__code__)


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_the_code_as_it_is_passes(check: Check) -> None:
    check()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new, checks = FAULTS[fault]
    put_in(monkeypatch, function, old, new)
    for check in checks:
        with pytest.raises(AssertionError):
            check()
