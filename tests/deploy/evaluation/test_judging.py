"""What a judge's scores are said to tell, on scores that are known to tell it or not."""

from __future__ import annotations

from random import Random

import pytest

from deploy.evaluation.judging import JudgedAnswer, report


def answers(count: int, gap: float, seed: int = 0) -> list[JudgedAnswer]:
    """Answers of four steps; the weakest step of a good one scores `gap` higher on average."""
    random, made = Random(seed), []
    for index in range(count):
        good = index % 2 == 0
        weakest = random.gauss(4 + gap * good, 1)
        made.append(JudgedAnswer((weakest, weakest + 1, 9.0, 8.0), good))
    return made


def test_a_judge_that_tells() -> None:
    told = report("expected", answers(60, 2.0))
    assert told.tells
    assert told.auc is not None
    assert told.auc > 0.85
    assert "scores tell good answers from others" in told.verdict()
    assert (told.steps, told.good, told.others) == (240, 30, 30)


@pytest.mark.parametrize("gap", [0.0, -2.0])
def test_a_judge_that_tells_nothing_is_said_to(gap: float) -> None:
    told = report("expected", answers(60, gap))
    assert not told.tells
    assert "do not differ" in told.verdict()
    assert "the judge tells nothing on this pair" in told.verdict()


def test_the_interval_holds_what_it_promises() -> None:
    """Of judges that toss coins, about one in forty is believed."""
    believed = sum(report("x", answers(40, 0.0, seed)).tells for seed in range(200))
    assert believed <= 12


def test_scores_that_do_not_spread() -> None:
    flat = [JudgedAnswer((6.1, 6.0, 6.2), index % 2 == 0) for index in range(40)]
    assert "do not spread" in report("expected", flat).verdict()


def test_scores_that_spread_little_may_tell_all_the_same() -> None:
    close = [JudgedAnswer((8.95 if index % 2 else 8.9,), index % 2 == 1) for index in range(40)]
    found = report("expected", close)
    assert found.tells
    assert found.verdict().startswith("scores tell good answers from others")


def test_too_few_or_alike() -> None:
    assert "too few answers" in report("expected", answers(6, 2.0)).verdict()
    alike = [JudgedAnswer((1.0, 8.0), True)] * 20
    assert "alike" in report("expected", alike).verdict()
    assert report("expected", [JudgedAnswer((), True)]).auc is None
