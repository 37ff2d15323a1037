"""Every kind of reasoning-gym: right answers are right, and no wrong one is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deploy.evaluation import gym
from deploy.evaluation.grading import Grader
from deploy.evaluation.gym_answers import SCORED, check_of
from orchestrator.answers.equality import equal
from orchestrator.answers.numbers import Number
from orchestrator.answers.values import read

factory = pytest.importorskip("reasoning_gym.factory")  # vLLM's environment lacks it
KINDS = sorted(factory.DATASETS.keys() - {"composite"})  # which is made of others
EXAMPLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "graph_color": lambda data: json.dumps(data["possible_answer"]),
    "propositional_logic": lambda data: str(data["example_answer"]),
    "rubiks_cube": lambda data: str(data["example_correct_answer"]),
}
"""Right answers that stand elsewhere in an entry."""
WITHOUT = {"boxnet", "rush_hour"}
"""Kinds whose entries hold no right answer."""
QUICK = {"knight_swap": 10}
"""Seeds whose problems are drawn quickly."""
WRONG = (
    "", "0", "-1", "nan", "inf", "-inf", "1e400", "None", "[]", "{}", "[[]]", "no idea", "Monday",
    "x", "C", "\\text{}", "Yes", "No", "True", "False",
)  # fmt: skip


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader(timeout_s=60)
    yield made
    made.close()


def _entries(kind: str) -> list[dict[str, Any]]:
    dataset = factory.create_dataset(kind, size=2, seed=QUICK.get(kind, 5))
    return [dataset[index] for index in range(2)]


def _right(kind: str, entry: dict[str, Any]) -> str | None:
    """A right answer; None if the entry holds none."""
    if kind in EXAMPLES:
        return EXAMPLES[kind](entry["metadata"])
    return None if kind in WITHOUT else str(entry["answer"])


def _wrong(right: str, other: str) -> Iterator[str]:
    yield from WRONG
    yield other
    yield f"-{right}"
    yield f"{right} or not"
    value = read(right)
    if isinstance(value, Number):
        yield from (str(value.value * 2 + 1), str(-value.value), str(value.value * 3))


@pytest.mark.parametrize("kind", KINDS)
async def test_right_answers_are_right_and_no_others(grader: Grader, kind: str) -> None:
    entry, another = _entries(kind)
    problem, right, other = gym.question(kind, entry), _right(kind, entry), _right(kind, another)
    if right is not None:
        for text in (f"So:\n\\boxed{{{right}}}", f"It is $\\boxed{{ {right} }}$."):
            assert await grader.right(text, problem), (right, text)
        if right.isalpha():
            assert await grader.right(f"\\boxed{{\\text{{{right}}}}}", problem), right
    for text in _wrong(right or "", other or ""):
        if equal(text, right or "") is not True:
            assert not await grader.right(f"\\boxed{{{text}}}", problem), (right, text)
    assert grader.timeouts == 0


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("coin_flip", "0"),
        ("complex_arithmetic", "nan"),
        ("fraction_simplification", "{answer} or not"),
        ("game_of_life_halting", "no idea"),
        ("gsm_symbolic", "-{answer}"),
        ("gsm_symbolic", "{answer} or not"),
        ("kakurasu", "{answer} or not"),
        ("knights_knaves", "{answer} or not"),
        ("letter_jumble", "{answer} or not"),
        ("pool_matrix", "{answer}1"),
        ("puzzle24", "{other}"),
        ("quantum_lock", "{answer} or not"),
        ("sokoban", "{answer} or not"),
        ("survo", "{answer} or not"),
    ],
)
async def test_scorers_that_are_not_believed(grader: Grader, kind: str, wrong: str) -> None:
    entry, other = _entries(kind)
    text = wrong.format(answer=entry["answer"], other=other["answer"])
    assert factory.create_dataset(kind, size=1, seed=0).score_answer(text, entry) >= 1
    assert not await grader.right(f"\\boxed{{{text}}}", gym.question(kind, entry))


@pytest.mark.parametrize(
    ("kind", "metadata", "answer", "right"),
    [
        ("puzzle24", {"numbers": [1, 6, 4, 1]}, "6 \\times 4 \\times 1 \\times 1", True),
        ("puzzle24", {"numbers": [1, 6, 4, 1]}, "6*4", False),
        ("puzzle24", {"numbers": [1, 6, 4, 1]}, "(6*4 = 24", False),
        ("countdown", {"numbers": [7, 3, 2], "target": 11}, "7 + (3*2) - 2", False),
        ("countdown", {"numbers": [7, 3, 2], "target": 13}, "7 + 3*2 = 13", True),
        ("countdown", {"numbers": [9, 9], "target": 9**9}, "9**9", False),
        ("countdown", {"numbers": [7, 0], "target": 7}, "7/0", False),
        ("n_queens", {"valid_answers": ["Q _", "_ Q"]}, "_  Q", True),
        ("n_queens", {"valid_answers": ["Q _", "_ Q"]}, "_ _", False),
    ],
)
def test_kinds_with_several_right_answers(
    kind: str, metadata: dict[str, Any], answer: str, right: bool
) -> None:
    check = check_of(kind)
    assert check is not None
    assert check(answer, {"answer": "", "metadata": metadata}) is right


@pytest.mark.parametrize(
    ("kind", "wanted", "answer", "right"),
    [
        ("fraction_simplification", "$\\frac{131}{319}$", "\\dfrac{131}{319}", True),
        ("fraction_simplification", "$\\frac{131}{319}$", "\\frac{262}{638}", False),
        ("prime_factorization", "3 × 3 × 71", "71 \\times 3^2", True),
        ("prime_factorization", "3 × 3 × 71", "639", False),
        ("prime_factorization", "3 × 3 × 71", "9 × 71", False),
        ("power_function", "897303639322.6414", "8.97 \\times 10^{11}", True),
        ("power_function", "897303639322.6414", "8.98e11", False),
        ("coin_flip", "3.051757812e-05", "1/32768", True),
        ("coin_flip", "3.051757812e-05", "-1/32768", False),
        ("number_format", "947865419.1689999", "947,865,419.169", True),
        ("advanced_geometry", "16.91°", "16.908^\\circ", True),
        ("advanced_geometry", "16.91°", "16.9", False),
        ("advanced_geometry", "(0.333, -2.000)", "(0.3333, -2)", True),
        ("advanced_geometry", "(0.333, -2.000)", "(-2, 0.3333)", False),
    ],
)
def test_kinds_that_want_a_form(kind: str, wanted: str, answer: str, right: bool) -> None:
    check = check_of(kind)
    assert check is not None
    assert check(answer, {"answer": wanted, "metadata": {}}) is right


def test_no_scorer_is_shown_what_it_would_run_as_python() -> None:
    assert SCORED.keys() <= {*KINDS}
    text = "__import__('pathlib').Path('made-by-a-scorer').touch() or 'x'"
    for kind in SCORED:
        check = check_of(kind)
        assert check is not None
        assert not check(text, {"answer": "?", "metadata": {}})
