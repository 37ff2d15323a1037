"""A calibration of the embedded pair, on questions whose answers nobody tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.evaluation.cached_worker import CachedWorker
from deploy.evaluation.calibrator import Calibrator, coin
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import LocalClient, RequestOptions, ask
from deploy.evaluation.evaluate import EvaluatedAnswer, Question
from deploy.evaluation.grading import Grader
from deploy.evaluation.threshold_search import CalibrationTarget, Point, Range
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.launch.workers import load_pair
from orchestrator.errors import BatonError, ContextLengthExceeded
from policies.specreason import SpecReason

QUESTIONS = [Question(problem.question, "") for problem in draw("dev", 0, 18)]
CHOSEN = Candidate("specreason", "specreason")


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[Any, CachedWorker]]:
    pair = load_pair(load(DEFAULT_FILE).args.workers)
    yield {name: CachedWorker(worker) for name, worker in pair.items()}
    for worker in pair.values():
        worker.close()  # type: ignore[union-attr]


def calibrator(workers: Any, grader: Grader, **judge: Any) -> Calibrator:
    args = load(DEFAULT_FILE).args
    args.policy.params.setdefault("specreason", {}).update(judge)
    client = LocalClient(args, workers, RequestOptions(seed=0))
    return Calibrator(
        QUESTIONS, lambda question, who: ask(client, question, who), grader, concurrency=8
    )


async def test_a_threshold_that_meets_a_share(workers: Any) -> None:
    with closing(Grader()) as grader:
        calibrating = calibrator(workers, grader)
        await calibrating.begin()
        judge = await calibrating.judge()
        target = CalibrationTarget("large_share", 0.2)
        row = await calibrating.threshold(CHOSEN, Range.of(SpecReason), target, judge)
    small, large = calibrating.ends
    assert (small.large_share, large.large_share, large.agreement) == (0.0, 1.0, 1.0)
    assert small.agreement < 0.9
    assert {report.scoring: report.tells for report in judge.reports}["expected"]
    assert row["met"]
    assert row["params"]["scoring"] == judge.scoring
    assert row["params"]["threshold"] == row["value"]
    assert 0.05 < row["large_share"] <= 0.2
    assert row["agreement"] > row["coin"] + 0.05  # what a judge is for
    assert row["accuracy"] is None
    assert row["agreement_low"] < row["agreement"] <= row["agreement_high"] + 1e-9


async def test_a_policy_that_throws_every_draft_away_is_spared_nothing(workers: Any) -> None:
    with closing(Grader()) as grader:
        calibrating = calibrator(workers, grader)
        await calibrating.begin()
        rewritten = Candidate("all", "specreason", {"threshold": 10, "answer_by": "large"})
        point = await calibrating.point(rewritten, 10)
    assert point.large_share == pytest.approx(1, abs=0.05)
    assert point.agreement > 0.9


async def test_the_scoring_that_tells_more_is_chosen(workers: Any) -> None:
    """The embedded pair was never taught the full prompt: its digits tell less than likelihoods.
    The question is the candidate's own, whatever the deployment file says."""
    with closing(Grader()) as grader:
        calibrating = calibrator(workers, grader, judge="short")
        await calibrating.begin()
        judge = await calibrating.judge({"judge": "full"})
    by_digit, by_likelihood, _ = judge.reports
    assert by_digit.auc is not None
    assert by_likelihood.auc is not None
    assert by_likelihood.auc > by_digit.auc + 0.1
    assert judge.scoring == "likelihood"


async def test_each_model_alone_is_asked_once() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(question: str, who: Candidate) -> EvaluatedAnswer:
        asked.append((question, who.label))
        return EvaluatedAnswer("It is 4.")

    with closing(Grader()) as grader:
        alone = Calibrator(QUESTIONS, ask, grader)
        await alone.begin()
    assert len(asked) == len({*asked}) == 2 * len(QUESTIONS)
    assert [end.agreement for end in alone.ends] == [1.0, 1.0]


async def test_a_question_that_cannot_be_answered_is_named() -> None:
    async def ask(question: str, who: Candidate) -> EvaluatedAnswer:
        if question == QUESTIONS[1].question:
            raise ContextLengthExceeded("the prompt is too long")
        return EvaluatedAnswer("")

    said = f"large-only: {json.dumps(QUESTIONS[1].question)[:40]}"
    with closing(Grader()) as grader, pytest.raises(BatonError, match=re.escape(said)) as told:
        await Calibrator(QUESTIONS, ask, grader).begin()
    assert str(told.value).endswith(": the prompt is too long")


def test_a_coin_lies_on_the_line_between_the_models() -> None:
    ends = Point(0, 0.0, 0.6), Point(1, 1.0, 1.0)
    assert coin(ends, 0.25) == pytest.approx(0.7)
    assert coin(ends, 1.5) == 1.0
