"""Problems of reasoning-gym: drawn by seed, with a format asked for, graded."""

from __future__ import annotations

import pytest

from deploy.evaluation.grading import Grader
from deploy.evaluation.gym import FORMAT
from deploy.evaluation.problems import load_problems
from orchestrator.errors import ConfigError

KINDS = ("leg_counting", "simple_equations")


def test_a_seed_draws_the_same_problems_and_another_draws_others() -> None:
    some = load_problems("gym:leg_counting:7", 4, 0)
    assert some == load_problems("gym:leg_counting", 4, 7)
    assert [one.question for one in load_problems("gym:leg_counting:7", 2, 0)] == [
        one.question for one in some[:2]
    ]
    assert len({one.question for one in some}) == 4
    assert {one.question for one in some} != {
        one.question for one in load_problems("gym:leg_counting", 4, 8)
    }
    assert all(one.question.endswith(FORMAT) for one in some)


def test_several_kinds_take_turns_and_share_the_limit() -> None:
    some = load_problems("gym:leg_counting,simple_equations:7", 5, 0)
    legs, equations = (load_problems(f"gym:{kind}:7", 3, 0) for kind in KINDS)
    assert some == [legs[0], equations[0], legs[1], equations[1], legs[2]]
    with pytest.raises(ConfigError, match="no problems 'nothing'"):
        load_problems("gym:leg_counting,nothing", 5, 0)


@pytest.mark.parametrize("kind", ["gsm_symbolic", "leg_counting", "simple_equations"])
async def test_the_kinds_of_the_evidence_are_graded(kind: str) -> None:
    grader = Grader()
    for problem in load_problems(f"gym:{kind}:1", 5, 0):
        value = int(problem.answer)
        for text, right in (
            (f"So it is\n\\boxed{{{value}}}", True),
            (f"We get \\boxed{{{value}.0}}.", True),
            (f"The answer is {value}.", True),
            (f"\\boxed{{{value + 1}}}", False),
            (f"First {value}, then \\boxed{{{value + 10}}}", False),
            ("", False),
        ):
            assert await grader.right(text, problem) is right, (problem, text)
    grader.close()


async def test_an_answer_that_is_no_number() -> None:
    grader = Grader()
    (problem,) = load_problems("gym:time_intervals:3", 1, 0)
    assert await grader.right(f"\\boxed{{{problem.answer}}}", problem)
    assert not await grader.right("\\boxed{in a while}", problem)
    (several,) = load_problems("gym:countdown:3", 1, 0)  # any expression that makes the number
    assert several.accepts is not None
    assert await grader.right(f"\\boxed{{ {several.answer} }}", several)
    assert not await grader.right("\\boxed{1}", several)
    grader.close()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("gym:gsm_symbolics", "gsm_symbolic"),
        ("gym:", "no problems ''"),
        ("gym:composite", "no problems 'composite'"),
        ("gym:leg_counting:many", "gym:NAME:SEED"),
        ("gym:leg_counting:-1", "gym:NAME:SEED"),
    ],
)
def test_what_is_no_kind_is_refused_by_name(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_problems(source, 1, 0)
