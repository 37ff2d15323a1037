"""A gate learned from recorded requests: what a rewrite of each draft would have changed.

A recording holds the drafts of the small model and the transcripts that they continue. From each,
two branches are run to their answers: the draft kept, and the step written by the large model
instead; the small model goes on alone after both. If only the second comes to what the large
model alone answers, the large model's step was worth its tokens. If neither does, nothing is
learned, so the probabilities hold if one of the two leads there. No right answers are
needed; all calls are greedy and cached, so branches share what they have in common.

Both models are logistic regressions (scikit-learn) with a curve that calibrates them: what their
logits were worth on requests that they had not seen (five folds by request), by centred isotonic
regression (Oron and Flournoy, arXiv 1701.05964). The probabilities that are reported are of
requests that neither model nor curve had seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, ContextLengthExceeded, Unsupported, WorkerError
from orchestrator.experiments.answer_text import final
from orchestrator.loop.actions import Accept, Generate, Script, WorkerName, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Worker
from policies.gate import (
    Curve,
    DraftSignal,
    Gate,
    LogisticModel,
    ReadingSignal,
    draft_signals,
    on,
    probability,
    reading_signals,
)
from policies.single import LargeOnly
from policies.steps import blank, write_out

FOLDS = 5
FEWEST = 20
"""Examples of either kind below which nothing is fitted."""
STRENGTH = 1.0
"""scikit-learn's C: the prior of a standardised weight is a normal distribution of variance C."""
BINS = 10
CONSTANT = 1e-3
"""A signal whose standard deviation is below this tells nothing."""

Floats = NDArray[np.float64]
Model = TypeVar("Model", LogisticModel[DraftSignal], LogisticModel[ReadingSignal])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedDraft:
    """A draft of the small model, the transcript it continues, and where its step was to end."""

    messages: tuple[Message, ...]
    transcript: Transcript
    draft: Segment
    criteria: StopCriteria
    limits: Limits


@dataclass(frozen=True, slots=True)
class GateExample:
    """Signals of one draft of a question, and whether the large model's step would have helped."""

    request: int
    draft: Mapping[str, float]
    reading: Mapping[str, float]
    helps: bool


@dataclass(frozen=True, slots=True)
class GateExamples:
    """What drafts teach, and why each of those that a worker failed is left out."""

    found: list[GateExample]
    failures: list[str]


@dataclass(frozen=True, slots=True)
class FittedModel(Generic[Model]):
    """One of the gate's models, and what it said of questions that it had not seen."""

    model: Model
    probabilities: Floats
    auc: float
    brier: float


@dataclass(frozen=True, slots=True)
class LearnedGateReport:
    """A gate and what it was learned from."""

    gate: Gate
    requests: int
    examples: int
    helps: int
    draft: FittedModel[LogisticModel[DraftSignal]]
    reading: FittedModel[LogisticModel[ReadingSignal]]
    outcomes: NDArray[np.bool_]


class Branch(Policy):
    """Accepts given segments, lets the large model write a step if asked, then one model alone."""

    rewrite: bool = False
    _segments: tuple[Segment, ...] = PrivateAttr(())
    _criteria: StopCriteria = PrivateAttr(StopCriteria(1))

    @classmethod
    def of(cls, segments: Iterable[Segment], rewrite: StopCriteria | None) -> Branch:
        branch = cls(rewrite=rewrite is not None)
        branch._segments = tuple(segments)
        branch._criteria = rewrite or StopCriteria(1)
        return branch

    def solve(self, transcript: Transcript) -> Script[None]:
        for segment in self._segments:
            if transcript.is_open:
                transcript = yield from Accept(transcript, segment)
        if self.rewrite and transcript.is_open:
            transcript = yield from Write("large", transcript, self._criteria)
        yield from write_out(transcript, "small")


def drafts(recording: Recording) -> Iterator[RecordedDraft]:
    """The small model's drafts of a chain's steps.

    None of a request that was not greedy, or that continued an answer: its branches would differ.
    Nor if a worker speculated with loss: the steps are not the models' own.
    """
    request = recording.request
    if not request.sampling.is_greedy or request.messages[-1].role in ("assistant", "prompt"):
        return
    if request.lossy("small", "large"):
        return
    for event in recording.events:
        match event:
            case ActionCompleted(Generate("small", transcript, criteria), Generation(segment)):
                usable = transcript.is_open and segment.tokens and not blank(segment)
                if usable and criteria.until and segment.logprobs:
                    yield RecordedDraft(
                        request.messages,
                        transcript,
                        segment,
                        replace(criteria, min_confidence=0.0),
                        replace(request.limits, deadline_s=None),
                    )


def by_question(recordings: Iterable[Recording]) -> list[list[RecordedDraft]]:
    """The drafts of all recordings, each once, by the conversation they belong to.

    Several policies, or several runs, draft the same for one question: what was learned from it
    may not be tested on it.
    """
    found: dict[tuple[Message, ...], dict[Any, RecordedDraft]] = {}
    for recording in recordings:
        for one in drafts(recording):
            known = (one.transcript.text, one.draft.text, one.draft.finish)
            found.setdefault(one.messages, {}).setdefault(known, one)
    return [list(own.values()) for own in found.values()]


async def examples(
    questions: Sequence[Sequence[RecordedDraft]],
    workers: Mapping[WorkerName, Worker],
    same: Callable[[str, str], Awaitable[bool]],
    *,
    concurrency: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> GateExamples:
    """What each recorded draft teaches; one that a worker fails, or whose context is full, nothing.

    Args:
        questions: the drafts of each, as `by_question` gives them.
        workers: greedy calls go to them; cached ones spare most.
        same: whether a text gives an answer.
        progress: is called with the number of questions that are done.

    Raises:
        Unsupported: the pair can never do it.
    """
    done = 0
    failures: list[str] = []

    async def tried(work: Awaitable[T], drafts: int) -> T | None:
        try:
            return await work
        except Unsupported:
            raise
        except (WorkerError, ContextLengthExceeded) as error:
            failures.extend([str(error)] * drafts)
            return None

    async def one(numbered: tuple[int, Sequence[RecordedDraft]]) -> list[GateExample]:
        nonlocal done
        number, own = numbered
        found: list[GateExample] = []
        wanted = await tried(_answer(LargeOnly(), own[0], workers), len(own))
        for recorded in own if wanted else ():
            example = await tried(_example(number, recorded, wanted or "", workers, same), 1)
            found += [] if example is None else [example]
        done += 1
        progress(done)
        return found

    lots = await map_concurrently(one, enumerate(questions), concurrency)
    return GateExamples([example for lot in lots for example in lot], failures)


async def _example(
    number: int,
    recorded: RecordedDraft,
    wanted: str,
    workers: Mapping[WorkerName, Worker],
    same: Callable[[str, str], Awaitable[bool]],
) -> GateExample | None:
    before = tuple(recorded.transcript.chain)

    async def agrees(branch: Branch) -> bool:
        answer = await _answer(branch, recorded, workers)
        return bool(answer) and await same(answer, final(wanted))

    helps = False
    if not await agrees(Branch.of((*before, recorded.draft), None)):
        if not await agrees(Branch.of(before, recorded.criteria)):
            return None
        helps = True
    call = Call("learn", recorded.transcript)
    verification = await workers["large"].verify(call, recorded.draft, Sampling())
    return GateExample(
        number,
        draft_signals(recorded.transcript, recorded.draft),
        reading_signals(verification, None),
        helps,
    )


async def _answer(
    policy: Policy, recorded: RecordedDraft, workers: Mapping[WorkerName, Worker]
) -> str:
    """The answer that a policy comes to; empty if it was cut."""
    request = Request("learn", recorded.messages, limits=recorded.limits)
    events = solve(policy, request, workers)
    async for event in events:
        if isinstance(event, RequestCompleted):
            ended = event.transcript
            return "" if ended.finish == "length" else ended.reply.strip()
    raise BatonError("expected the end of a branch, but its events broke off")


def fit(found: Sequence[GateExample]) -> LearnedGateReport:
    """Both models.

    Raises:
        BatonError: too few examples of either kind.
    """
    outcomes = np.array([example.helps for example in found], dtype=bool)
    requests = np.array([example.request for example in found])
    for kind in (True, False):
        count, own = int((outcomes == kind).sum()), len(set(requests[outcomes == kind].tolist()))
        if count < FEWEST or own < FOLDS:
            raise BatonError(
                f"expected at least {FEWEST} drafts of {FOLDS} questions that a rewrite would "
                f"{'' if kind else 'not '}have helped, found {count} of {own}: record more greedy "
                "requests (temperature 0) of a policy that drafts step by step"
            )
    helps = int(outcomes.sum())
    draft = _fitted(
        LogisticModel[DraftSignal], get_args(DraftSignal), [e.draft for e in found], outcomes,
        requests,
    )  # fmt: skip
    # The second model is fitted on what the first says of requests that are new to it.
    logits = np.log(draft.probabilities) - np.log1p(-draft.probabilities)
    readings = [
        {**example.reading, "draft": float(logit)}
        for example, logit in zip(found, logits, strict=True)
    ]
    reading = _fitted(
        LogisticModel[ReadingSignal], get_args(ReadingSignal), readings, outcomes, requests
    )
    gate = Gate(draft=draft.model, reading=reading.model)
    return LearnedGateReport(
        gate, len(set(requests.tolist())), len(found), helps, draft, reading, outcomes
    )


def _fitted(
    kind: type[Model],
    names: Sequence[str],
    signals: Sequence[Mapping[str, float]],
    outcomes: NDArray[np.bool_],
    requests: NDArray[Any],
) -> FittedModel[Model]:
    from sklearn.metrics import brier_score_loss, roc_auc_score

    names = [name for name in names if np.std([row[name] for row in signals]) > CONSTANT]
    table = np.array([[row[name] for name in names] for row in signals])
    unseen = np.empty(len(table))
    for seen, rest in _folds(requests).split(table, outcomes, requests):
        model, curve = _calibrated(table[seen], outcomes[seen], requests[seen])
        unseen[rest] = [
            probability(on(curve, logit)) for logit in model.decision_function(table[rest])
        ]
    model, curve = _calibrated(table, outcomes, requests)
    scaler, regression = model[0], model[1]
    weights = regression.coef_[0] / scaler.scale_
    bias = float(regression.intercept_[0] - weights @ scaler.mean_)
    named = {name: round(float(weight), 5) for name, weight in zip(names, weights, strict=True)}
    return FittedModel(
        kind.model_validate({"bias": round(bias, 5), "weights": named, "curve": curve}),
        unseen,
        float(roc_auc_score(outcomes, unseen)),
        float(brier_score_loss(outcomes, unseen)),
    )


def _calibrated(
    table: Floats, outcomes: NDArray[np.bool_], requests: NDArray[Any]
) -> tuple[Any, Curve]:
    """A logistic regression, and what its logits were worth in the folds that it had not seen."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=1000))
    logits = cross_val_predict(
        model, table, outcomes, groups=requests, cv=_folds(requests), method="decision_function"
    )
    return model.fit(table, outcomes), calibration_curve(logits, outcomes)


def calibration_curve(logits: Floats, outcomes: NDArray[np.bool_]) -> Curve:
    """What logits were worth, as logits: a point at the middle of each block of the isotonic
    regression.

    One example more is taken to have helped below all others, and one not to have above: so no
    probability is 0 or 1, and the outermost are no surer than their examples are many. Equal logits
    are one place, whatever the order of their examples.
    """
    from sklearn.isotonic import isotonic_regression

    found, inverse, counts = np.unique(logits.round(4), return_inverse=True, return_counts=True)
    places = np.concatenate([found[:1], found, found[-1:]])
    weights = np.concatenate([[1], counts, [1]])
    helped = np.concatenate([[1.0], np.bincount(inverse, outcomes) / counts, [0.0]])
    shares = isotonic_regression(helped, sample_weight=weights)
    points = []
    for share in np.unique(shares):
        own = shares == share
        middle = np.average(places[own], weights=weights[own])
        worth = np.log(share) - np.log1p(-share)
        points.append((round(float(middle), 4), round(float(worth), 4)))
    return tuple(sorted(dict(points).items()))


def _folds(requests: NDArray[Any]) -> Any:
    """Folds by request: fewer if a fold of few requests is split once more."""
    from sklearn.model_selection import StratifiedGroupKFold

    return StratifiedGroupKFold(min(FOLDS, len(np.unique(requests))))


def reliability(
    fitted: FittedModel[Any], outcomes: NDArray[np.bool_]
) -> list[tuple[float, float, int]]:
    """(mean probability, share that a rewrite helped, count) of equally large groups of drafts."""
    order = np.argsort(fitted.probabilities)
    groups = np.array_split(order, min(BINS, len(order)))
    return [
        (float(fitted.probabilities[g].mean()), float(outcomes[g].mean()), len(g)) for g in groups
    ]
