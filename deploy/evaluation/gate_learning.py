"""A gate learned from recorded requests: what a rewrite of each draft would have changed.

A recording holds the drafts of the small model and the transcripts that they continue. From each,
two branches are run to their answers: the draft kept, and the step written by the large model
instead; the small model goes on alone behind both. Where only the second comes to what the large
model alone answers, the large model's step was worth its tokens. Where neither does, nothing is
learned, so the probabilities are those where one of the two leads there. No right answers are
needed; all calls are greedy and cached, so branches share what they have in common.

Both models are logistic regressions (scikit-learn); the probabilities that are reported come from
requests that their model had not seen (five folds by request).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, WorkerError
from orchestrator.experiments.answer_equality import final
from orchestrator.loop.actions import Accept, Generate, Script, WorkerName, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted
from orchestrator.loop.policy import Policy
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
    DraftSignal,
    Gate,
    LogisticModel,
    ReadingSignal,
    draft_signals,
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

log = logging.getLogger(__name__)


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
    """
    request = recording.request
    if not request.sampling.is_greedy or request.messages[-1].role in ("assistant", "prompt"):
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
                        replace(criteria, max_entropy=None, min_confidence=0.0),
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
) -> list[GateExample]:
    """What each recorded draft teaches; one whose branches a worker fails teaches nothing.

    Args:
        questions: the drafts of each, as `by_question` gives them.
        workers: greedy calls go to them; cached ones spare most.
        same: whether a text gives an answer.
        progress: is called with the number of questions that are done.
    """
    done = 0

    async def one(numbered: tuple[int, Sequence[RecordedDraft]]) -> list[GateExample]:
        nonlocal done
        number, own = numbered
        found: list[GateExample] = []
        try:
            wanted = await _answer(LargeOnly(), own[0], workers)
            for recorded in own if wanted else ():
                example = await _example(number, recorded, wanted, workers, same)
                found += [] if example is None else [example]
        except WorkerError as error:
            log.warning("a question is left out: %s", error)
        done += 1
        progress(done)
        return found

    lots = await map_concurrently(one, enumerate(questions), concurrency)
    return [example for lot in lots for example in lot]


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
    """The answer that a policy comes to; empty where it was cut."""
    events = solve(
        policy,
        recorded.messages,
        workers,
        request="learn",
        sampling=Sampling(),
        limits=recorded.limits,
    )
    async for event in events:
        if isinstance(event, RequestCompleted):
            ended = event.transcript
            return "" if ended.finish == "length" else ended.answer.text().strip()
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
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import brier_score_loss, roc_auc_score
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = [name for name in names if np.std([row[name] for row in signals]) > CONSTANT]
    table = np.array([[row[name] for name in names] for row in signals])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=1000))
    unseen = cross_val_predict(
        model,
        table,
        outcomes,
        groups=requests,
        cv=StratifiedGroupKFold(FOLDS),
        method="predict_proba",
    )[:, 1].clip(1e-6, 1 - 1e-6)
    model.fit(table, outcomes)
    scaler, regression = model[0], model[1]
    weights = regression.coef_[0] / scaler.scale_
    bias = float(regression.intercept_[0] - weights @ scaler.mean_)
    named = {name: round(float(weight), 5) for name, weight in zip(names, weights, strict=True)}
    return FittedModel(
        kind.model_validate({"bias": round(bias, 5), "weights": named}),
        unseen,
        float(roc_auc_score(outcomes, unseen)),
        float(brier_score_loss(outcomes, unseen)),
    )


def reliability(
    fitted: FittedModel[Any], outcomes: NDArray[np.bool_]
) -> list[tuple[float, float, int]]:
    """(mean probability, share that a rewrite helped, count) of equally large groups of drafts."""
    order = np.argsort(fitted.probabilities)
    groups = np.array_split(order, min(BINS, len(order)))
    return [
        (float(fitted.probabilities[g].mean()), float(outcomes[g].mean()), len(g)) for g in groups
    ]
