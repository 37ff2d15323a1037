"""The generated problems: right, checkable, reproducible, and split for good."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import astuple
from itertools import islice
from statistics import fmean

import pytest

from deploy.evaluation.builtin import problems, wordings
from deploy.evaluation.builtin.problems import (
    FAMILIES,
    LEVELS,
    draw,
    part_of,
    stream,
)
from deploy.evaluation.builtin.shared_forms import normal_form
from deploy.evaluation.problems import load_problems
from deploy.lab.pair.steps import KEYWORDS

PARTS = ("train", "dev", "heldout")


@pytest.mark.parametrize("part", PARTS)
def test_facts_hold_and_lead_to_the_answer(part: problems.Part) -> None:
    for problem in draw(part, 3, 1000):
        for fact in problem.facts:
            a, operation, b = re.split(r"([-+*/])", fact.expression)
            exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
            if operation == "/":
                assert int(b) * fact.value == int(a)
            else:
                assert exact[operation] == fact.value
        assert problem.answer == str(problem.facts[-1].value)


def test_parts_share_no_problem() -> None:
    keys = {part: {p.key for p in draw(part, 0, 4000)} for part in PARTS}  # type: ignore[arg-type]
    assert not keys["train"] & keys["heldout"]
    assert not keys["train"] & keys["dev"]
    assert not keys["dev"] & keys["heldout"]
    for part, found in keys.items():
        assert {part_of(key) for key in found} == {part}


@pytest.mark.parametrize(
    ("writings", "form"),
    [
        (("8+10", "10+8", "(10)+8"), "(10+8)"),
        (("21+3*3", "3*3+21", "((3)*3)+21", "21+(3*3)"), "((3*3)+21)"),
        (("(309+3)/4", "(3+309)/4"), "((3+309)/4)"),
        (("9-4+2", "9+2-4", "2+(9-4)", "9-(4-2)"), "(2+9-4)"),
        (("8/4*7", "((8)/4)*7", "7*8/4", "7*(8/4)"), "(7*8/4)"),
        (("17%3",), "(17%3)"),
        (("9x+19=136",), "9x+19=136"),
    ],
)
def test_writings_of_one_calculation_have_one_form(writings: tuple[str, ...], form: str) -> None:
    assert {normal_form(key) for key in writings} == {form}


def test_other_calculations_have_other_forms() -> None:
    keys = ("9-4", "4-9", "9/4", "4/9", "9-4-2", "9-(4+2)*1", "(9-4)*2", "9-4*2", "9%4", "9+4")
    assert len({normal_form(key) for key in keys}) == len(keys)


def test_what_training_has_in_another_writing_is_not_held_out() -> None:
    trained = {normal_form(problem.key) for problem in islice(stream("train", 1), 20_000)}
    drawn = [normal_form(problem.key) for problem in draw("heldout", 20261123, 1000)]
    assert len(set(drawn)) == len(drawn)
    assert not trained & set(drawn)


def test_every_family_and_level_is_drawn_alike() -> None:
    for part, about, families in (("dev", 170, 85), ("heldout", 100, 70)):
        drawn = draw(part, 1, 1000)  # type: ignore[arg-type]
        for family in FAMILIES:
            assert abs(sum(p.family == family for p in drawn) - 100) <= 100 - families
        for level in LEVELS:  # of small numbers training has more
            assert sum(p.level == level for p in drawn) > about
    drawn = draw("dev", 1, 1000)
    steps = [fmean(len(p.facts) for p in drawn if p.level == level) for level in LEVELS]
    assert steps == sorted(steps), "levels grow harder"


def test_problems_stay_the_same_from_version_to_version() -> None:
    """Recordings, calibrations and the model card's figures rest on them."""
    problems = [astuple(problem) for part in PARTS for problem in islice(stream(part, 0), 1000)]  # type: ignore[arg-type]
    digest = hashlib.sha256(json.dumps(problems).encode()).hexdigest()
    assert digest == "cfcd704ba1a17f400d3d3ebcd6df091e9e17ed850b4c1ca7c6acd6c54a252da2"


def test_keywords_occur_only_as_reflection() -> None:
    for problem in draw("train", 11, 4000) + draw("heldout", 11, 1000):
        assert not any(word in problem.question.lower() for word in KEYWORDS), problem.question


def test_a_scene_has_every_part_of_a_story() -> None:
    assert len(wordings.WORDS["scenes"]) >= 10
    for scene in wordings.WORDS["scenes"].values():
        assert set(scene) == {"has", "gain", "loss", "now", "left"}
        assert all(len(set(part)) >= 3 for part in scene.values())


def test_the_strangers_questions_can_be_asked() -> None:
    questions = load_problems("builtin:strangers", None, 0)
    assert len({one.question for one in questions}) == len(questions) == 120
    assert all(one.answer.isdigit() for one in questions)
