"""Problems of reasoning-gym: drawn by seed, with a format asked for, graded."""

from __future__ import annotations

import pytest

from deploy.evaluation.gym import FORMAT
from deploy.evaluation.problems import load_problems
from orchestrator.errors import ConfigError

KINDS = ("leg_counting", "simple_equations")


def test_a_seed_draws_the_same_problems_and_another_draws_others() -> None:
    some, others = (
        [one.question for one in load_problems("gym:leg_counting", 4, seed)] for seed in (7, 8)
    )
    for source, count in (("gym:leg_counting:7", 4), ("gym:leg_counting:7", 2)):
        assert [one.question for one in load_problems(source, count, 0)] == some[:count]
    assert len({*some}) == 4
    assert {*some} != {*others}
    assert all(question.endswith(FORMAT) for question in some)


def test_several_kinds_take_turns_and_share_the_limit() -> None:
    some = load_problems("gym:leg_counting,simple_equations:7", 5, 0)
    legs, equations = (load_problems(f"gym:{kind}:7", 3, 0) for kind in KINDS)
    assert some == [legs[0], equations[0], legs[1], equations[1], legs[2]]
    with pytest.raises(ConfigError, match="no problems 'nothing'"):
        load_problems("gym:leg_counting,nothing", 5, 0)


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
