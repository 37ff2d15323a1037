"""A pair of models calibrated on any questions: its judge's scores, then each policy's threshold.

The large model alone says what the outcome of a question is; agreement with it is what a policy is
measured by, beside the tokens that the large model generates, as a share of those that it generates
alone. Every answer is made from cached calls where it can be (`deploy.evaluation.cached_worker`),
so runs share their steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.evaluate import EvaluatedAnswer, Problem
from deploy.evaluation.grading import Grader, Scored
from deploy.evaluation.intervals import mean, wilson
from deploy.evaluation.judging import (
    JudgedAnswer,
    JudgeReport,
    curve,
    log_probability,
    report,
    score_at,
)
from deploy.evaluation.threshold_search import (
    DIGITS,
    CalibrationResult,
    CalibrationTarget,
    Point,
    Range,
    search,
)
from orchestrator.errors import BatonError, Unsupported
from orchestrator.experiments.answer_text import final
from policies import POLICIES
from policies.judge import Judging

LARGE, SMALL = Candidate("large-only", "large-only"), Candidate("small-only", "small-only")
UNIT = (4.0, 1.0)
"""A curve by which scores of likelihood are turned back into log-probabilities."""
BETTER = 0.05
"""A scoring replaces another if its AUC is better by so much."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One question's answer, and whether it is the large model's and the right one."""

    answer: EvaluatedAnswer
    agrees: bool
    right: bool | None


@dataclass(frozen=True, slots=True)
class CalibratedThreshold:
    """One policy's result; `params` are what a deployment file needs."""

    policy: str
    parameter: str
    params: dict[str, Any]
    found: CalibrationResult


@dataclass(frozen=True, slots=True)
class JudgeCalibration:
    """What the judge's scorings tell, the best of them, and the curve of likelihoods."""

    reports: tuple[JudgeReport, ...]
    scoring: str | None
    likelihood: tuple[float, float] | None


class Calibrator:
    """One pair, one set of questions.

    Args:
        problems: the questions; an empty answer is not known.
        ask: a question to a candidate.
        grader: compares answers.
        concurrency: questions at once.
        tell: is called with a line for each run that is done.
        progress: is called with a run's label and how many of its questions are answered.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        ask: Callable[[str, Candidate], Awaitable[EvaluatedAnswer]],
        grader: Grader,
        *,
        concurrency: int = 1,
        tell: Callable[[str], None] = lambda _: None,
        progress: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._problems, self._ask, self._grader = problems, ask, grader
        self._concurrency, self._tell, self._progress = concurrency, tell, progress
        self._outcomes: list[str] = []
        self._large_tokens = 0  # that the large model alone generates

    async def ends(self) -> tuple[Point, Point]:
        """The small model alone and the large one alone: the ends of every curve.

        This comes first: what the large model answers is what the others are compared with.
        """
        alone = await self._answers(LARGE)
        self._outcomes = [final(answer.text) for answer in alone]
        self._large_tokens = sum(answer.metrics.large_tokens for answer in alone)
        return await self.point(SMALL, 0.0), await self.point(LARGE, 1.0)

    async def point(self, candidate: Candidate, value: float) -> Point:
        """What a candidate comes to on the questions."""
        return self._point(value, await self._judged(candidate))

    async def judge(self, params: Mapping[str, Any] = MappingProxyType({})) -> JudgeCalibration:
        """The judge's scores of the small model's steps, by every scoring that the pair can do.

        `params`: a candidate's, of which the judge's question counts.
        """
        question = {key: params[key] for key in ("judge",) if key in params}
        judged: dict[str, list[JudgedAnswer]] = {}
        for scoring in ("expected", "likelihood"):
            settings = {**question, "threshold": 0, "answer_by": "small", "scoring": scoring}
            if scoring == "likelihood":
                settings["likelihood"] = list(UNIT)
            candidate = Candidate(f"judge by {scoring}", "specreason", settings)
            try:
                answered = await self._judged(candidate)
            except Unsupported as error:
                self._tell(f"judge by {scoring}: {error}")
                continue
            judged[scoring] = [
                JudgedAnswer(
                    tuple(step.score for step in one.answer.steps if step.score is not None),
                    one.agrees,
                )
                for one in answered
            ]
        likelihood = _curve(judged.get("likelihood", ()))
        if likelihood is not None:
            judged["likelihood"] = [
                JudgedAnswer(
                    tuple(score_at(log_probability(s, UNIT), likelihood) for s in one.scores),
                    one.good,
                )
                for one in judged["likelihood"]
            ]
            if "expected" in judged:
                judged["both"] = [
                    JudgedAnswer(tuple(map(min, one.scores, other.scores)), one.good)
                    for one, other in zip(judged["expected"], judged["likelihood"], strict=True)
                ]
        reports = [report(scoring, answers) for scoring, answers in judged.items()]
        for one in reports:
            self._tell(f"judge by {one.scoring}: {one.verdict()}")
        return JudgeCalibration(tuple(reports), _best(reports), likelihood)

    async def threshold(
        self,
        candidate: Candidate,
        where: Range,
        target: CalibrationTarget,
        judge: JudgeCalibration | None = None,
    ) -> CalibratedThreshold:
        """The candidate's threshold; what the judge's calibration says goes with it."""
        params = _judge_params(candidate, judge)

        async def measure(value: float) -> Point:
            given = int(value) if where.whole else round(value, DIGITS)
            label = f"{candidate.policy}:{where.parameter}={given:g}"
            chosen = {**params, **candidate.params, where.parameter: given}
            point = await self.point(Candidate(label, candidate.policy, chosen), given)
            accuracy = "" if point.accuracy is None else f", accuracy {point.accuracy:.3f}"
            self._tell(
                f"{label}: large share {point.large_share:.3f}, "
                f"agreement {point.agreement:.3f}{accuracy}"
            )
            return point

        found = await search(measure, where, target)
        own = {**params, **candidate.params, where.parameter: found.best.value}
        if where.whole:
            own[where.parameter] = int(found.best.value)
        return CalibratedThreshold(candidate.policy, where.parameter, own, found)

    async def _answers(self, candidate: Candidate) -> list[EvaluatedAnswer]:
        done = 0

        async def one(problem: Problem) -> EvaluatedAnswer:
            nonlocal done
            answer = await self._ask(problem.question, candidate)
            done += 1
            self._progress(candidate.label, done)
            return answer

        try:
            return await map_concurrently(one, self._problems, self._concurrency)
        except Unsupported:
            raise
        except BatonError as error:
            raise BatonError(f"{candidate.label}: {error}") from error

    async def _judged(self, candidate: Candidate) -> list[Answered]:
        rows = []
        for problem, outcome, answer in zip(
            self._problems, self._outcomes, await self._answers(candidate), strict=True
        ):
            agrees = bool(outcome) and await self._grader.same(answer.text, outcome)
            known = problem.answer or isinstance(problem, Scored)
            right = await self._grader.right(answer.text, problem) if known else None
            rows.append(Answered(answer, agrees, right))
        return rows

    def _point(self, value: float, rows: Sequence[Answered]) -> Point:
        large = sum(row.answer.metrics.large_tokens for row in rows)
        known = [row.right for row in rows if row.right is not None]
        return Point(
            value,
            large / self._large_tokens if self._large_tokens else 0.0,
            mean([row.agrees for row in rows]),
            mean(known) if known else None,
        )


def _curve(answers: Sequence[JudgedAnswer]) -> tuple[float, float] | None:
    """The curve for scores on `UNIT`."""
    steps = [log_probability(score, UNIT) for one in answers for score in one.scores]
    weakest = [(log_probability(min(one.scores), UNIT), one.good) for one in answers if one.scores]
    return curve(weakest, steps) if steps else None


def _best(reports: Sequence[JudgeReport]) -> str | None:
    """The scoring that tells most, the first unless another is clearly better."""
    best: JudgeReport | None = None
    for one in reports:
        if one.auc is not None and (best is None or one.auc > (best.auc or 0.0) + BETTER):
            best = one
    return None if best is None else best.scoring


def _judge_params(candidate: Candidate, judge: JudgeCalibration | None) -> dict[str, Any]:
    """The judge's part of a policy's parameters."""
    params: dict[str, Any] = {}
    if judge is None or not issubclass(POLICIES[candidate.policy], Judging):
        return params
    if judge.likelihood is not None:
        params["likelihood"] = [round(number, 6) for number in judge.likelihood]
    if judge.scoring is not None:
        params["scoring"] = judge.scoring
    return params


def coin(ends: tuple[Point, Point], share: float, measure: str = "agreement") -> float | None:
    """What a coin comes to that gives each question to one model alone, at this share."""
    small, large = ends
    low, high = getattr(small, measure), getattr(large, measure)
    if low is None or high is None:
        return None
    between = (share - small.large_share) / (large.large_share - small.large_share or 1.0)
    return float(low + min(1.0, max(0.0, between)) * (high - low))


def as_json(
    calibrated: CalibratedThreshold, ends: tuple[Point, Point], count: int
) -> dict[str, Any]:
    """A policy's part of the calibration file; all figures are of the questions that chose."""
    best = calibrated.found.best
    low, high = wilson(round(best.agreement * count), count)
    return {
        "parameter": calibrated.parameter,
        "value": best.value,
        "met": calibrated.found.met,
        "params": calibrated.params,
        "in_sample": True,
        **{key: value for key, value in asdict(best).items() if key != "value"},
        "agreement_low": low,
        "agreement_high": high,
        "coin": coin(ends, best.large_share),
        "tried": [asdict(point) for point in calibrated.found.tried],
    }
