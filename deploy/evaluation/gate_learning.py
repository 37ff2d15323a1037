"""A gate learned from recorded requests: what a rewrite of each draft would have changed.

A recording has the small model's drafts and the transcripts that they continue. From each, two
branches run to their answers: one keeps the draft, in the other the large model writes the step;
the small model continues both alone. If only the second gives the answer of the large model alone,
the large model's step was worth its tokens. If neither does, the draft is left out, so the
probabilities assume that one of the two gives it. No right answers are needed. All calls are
greedy and cached, so branches share equal calls.

Both models are logistic regressions (scikit-learn), calibrated by a curve: centred isotonic
regression (Oron and Flournoy, arXiv 1701.05964) of their logits on requests that they had not seen
(five folds by request). The reported probabilities are of requests that neither model nor curve had
seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from deploy.evaluation.candidates import build_policy
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.recording import CallMissing, Recording, replayed
from orchestrator.answers.text import final
from orchestrator.errors import BatonError, ContextLengthExceeded, Unsupported, WorkerError
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
"""The fewest examples of either kind for a fit."""
STRENGTH = 1.0
"""scikit-learn's C: the prior of a standardised weight is a normal distribution of variance C."""
BINS = 10
CONSTANT = 1e-3
"""A signal whose standard deviation is below this is left out."""

Floats = NDArray[np.float64]
Model = TypeVar("Model", LogisticModel[DraftSignal], LogisticModel[ReadingSignal])
T = TypeVar("T")
Same = Callable[[str, str], Awaitable[bool]]
"""Returns whether a text gives an answer."""


@dataclass(frozen=True, slots=True)
class RecordedDraft:
    """A draft of the small model, the transcript it continues, and its stop criteria."""

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
class FittedModel(Generic[Model]):
    """One of the gate's models, and what it is worth on questions that it had not seen.

    `reliability`: (mean probability, share that a rewrite helped, count) of equal groups of drafts.
    """

    model: Model
    probabilities: Floats
    auc: float
    brier: float
    reliability: list[tuple[float, float, int]]


@dataclass(frozen=True, slots=True)
class LearnedGateReport:
    """A gate, and the number of requests and examples that it was learned from."""

    gate: Gate
    requests: int
    examples: int
    helps: int
    draft: FittedModel[LogisticModel[DraftSignal]]
    reading: FittedModel[LogisticModel[ReadingSignal]]


class Branch(Policy):
    """Accept given segments; the large model may write one step, the small one writes the rest."""

    _segments: tuple[Segment, ...] = PrivateAttr(())
    _rewrite: StopCriteria | None = PrivateAttr(None)

    @classmethod
    def of(cls, segments: Iterable[Segment], rewrite: StopCriteria | None) -> Branch:
        branch = cls()
        branch._segments, branch._rewrite = tuple(segments), rewrite
        return branch

    def solve(self, transcript: Transcript) -> Script[None]:
        for segment in self._segments:
            if transcript.is_open:
                transcript = yield from Accept(transcript, segment)
        if self._rewrite is not None and transcript.is_open:
            transcript = yield from Write("large", transcript, self._rewrite)
        yield from write_out(transcript, "small")


async def drafts(recording: Recording) -> list[RecordedDraft]:
    """Return the small model's drafts of a chain's steps, as far as the policy decides as recorded.

    A request is left out if it was not greedy or continued an answer (its branches would differ),
    or if a worker speculated with loss (its steps are not the models').
    """
    found: list[RecordedDraft] = []
    if not recording.sampling.is_greedy or recording.messages[-1].role in ("assistant", "prompt"):
        return found
    if any("lossy" in method for method in recording.speculation.values()):
        return found
    policy = build_policy(recording.policy, recording.parameters)
    with suppress(CallMissing):
        async for event in replayed(recording, policy):
            match event:
                case ActionCompleted(Generate("small", transcript, criteria), Generation(segment)):
                    usable = transcript.is_open and segment.tokens and not blank(segment)
                    if usable and criteria.until and segment.logprobs:
                        draft = RecordedDraft(
                            recording.messages,
                            transcript,
                            segment,
                            replace(criteria, min_confidence=0.0),
                            recording.limits,
                        )
                        found.append(draft)
    return found


async def by_question(recordings: Iterable[Recording]) -> list[list[RecordedDraft]]:
    """Return the drafts of all recordings, each once, by conversation.

    Several policies or runs draft the same for one question, on which a model that was fitted to
    one of them must not be tested.
    """
    found: dict[tuple[Message, ...], dict[Any, RecordedDraft]] = {}
    for recording in recordings:
        for one in await drafts(recording):
            known = (one.transcript.text, one.draft.text, one.draft.finish)
            found.setdefault(one.messages, {}).setdefault(known, one)
    return [list(own.values()) for own in found.values()]


async def examples(
    questions: Sequence[Sequence[RecordedDraft]],
    workers: Mapping[WorkerName, Worker],
    same: Same,
    *,
    concurrency: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[list[GateExample], list[str]]:
    """Return the examples, and a worker's failure for each draft that is left out for it.

    `questions` come from `by_question`. `progress` is called with the number of questions that are
    done.

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
        wanted = await tried(_answer(LargeOnly(), own[0], workers), len(own))
        found = [
            await tried(_example(number, recorded, wanted, workers, same), 1)
            for recorded in own
            if wanted
        ]
        done += 1
        progress(done)
        return [example for example in found if example is not None]

    lots = await map_concurrently(one, enumerate(questions), concurrency)
    return [example for lot in lots for example in lot], failures


async def _example(
    number: int,
    recorded: RecordedDraft,
    wanted: str,
    workers: Mapping[WorkerName, Worker],
    same: Same,
) -> GateExample | None:
    before = tuple(recorded.transcript.chain)

    async def agrees(branch: Branch) -> bool:
        answer = await _answer(branch, recorded, workers)
        return bool(answer) and await same(answer, final(wanted))

    kept = await agrees(Branch.of((*before, recorded.draft), None))
    if not kept and not await agrees(Branch.of(before, recorded.criteria)):
        return None
    call = Call("learn", recorded.transcript)
    verification = await workers["large"].verify(call, recorded.draft, Sampling())
    signals = draft_signals(recorded.transcript, recorded.draft)
    return GateExample(number, signals, reading_signals(verification, None), not kept)


async def _answer(
    policy: Policy, recorded: RecordedDraft, workers: Mapping[WorkerName, Worker]
) -> str:
    """Return a policy's answer; "" if it was cut."""
    request = Request("learn", recorded.messages, limits=recorded.limits)
    async for event in solve(policy, request, workers):
        if isinstance(event, RequestCompleted):
            ended = event.transcript
            return "" if ended.finish == "length" else ended.reply.strip()
    raise BatonError("expected the end of a branch, but its events broke off")


def fit(found: Sequence[GateExample]) -> LearnedGateReport:
    """Fit both models.

    Raises:
        BatonError: too few examples of either kind.
    """
    outcomes = np.array([example.helps for example in found], dtype=bool)
    requests = np.array([example.request for example in found])
    for kind in (True, False):
        count, own = int((outcomes == kind).sum()), len(np.unique(requests[outcomes == kind]))
        if count < FEWEST or own < FOLDS:
            raise BatonError(
                f"expected at least {FEWEST} drafts of {FOLDS} questions that a rewrite would "
                f"{'' if kind else 'not '}have helped, found {count} of {own}: record more greedy "
                "requests (temperature 0) of a policy that drafts step by step"
            )
    signals = [example.draft for example in found]
    draft = _fitted(LogisticModel[DraftSignal], get_args(DraftSignal), signals, outcomes, requests)
    # The second model is fitted on the first one's logits of requests that were new to that one.
    logits = np.log(draft.probabilities) - np.log1p(-draft.probabilities)
    readings = [
        {**example.reading, "draft": float(logit)}
        for example, logit in zip(found, logits, strict=True)
    ]
    reading = _fitted(
        LogisticModel[ReadingSignal], get_args(ReadingSignal), readings, outcomes, requests
    )
    gate = Gate(draft=draft.model, reading=reading.model)
    asked, helps = len(np.unique(requests)), int(outcomes.sum())
    return LearnedGateReport(gate, asked, len(found), helps, draft, reading)


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
    groups = np.array_split(np.argsort(unseen), min(BINS, len(unseen)))
    return FittedModel(
        kind.model_validate({"bias": round(bias, 5), "weights": named, "curve": curve}),
        unseen,
        float(roc_auc_score(outcomes, unseen)),
        float(brier_score_loss(outcomes, unseen)),
        [(float(unseen[g].mean()), float(outcomes[g].mean()), len(g)) for g in groups],
    )


def _calibrated(
    table: Floats, outcomes: NDArray[np.bool_], requests: NDArray[Any]
) -> tuple[Any, Curve]:
    """Return a logistic regression, and its calibration by folds that it had not seen."""
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
    """Return the calibrated logits, by a point in the middle of each block of the isotonic
    regression.

    One example that helped is added below all others, and one that did not above them. So no
    probability is 0 or 1, and the outermost depend on the number of their examples. Equal logits
    make one point.
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
    """Return folds by request, fewer if there are fewer requests."""
    from sklearn.model_selection import StratifiedGroupKFold

    return StratifiedGroupKFold(min(FOLDS, len(np.unique(requests))))
