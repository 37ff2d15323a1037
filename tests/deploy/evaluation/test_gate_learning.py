"""A gate learned: what the branches of a draft come to, and what is fitted to that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp
from random import Random
from typing import Any, get_args

import numpy as np
import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import LocalClient, RequestOptions, ask
from deploy.evaluation.gate_learning import (
    GateExample,
    by_question,
    calibration_curve,
    drafts,
    examples,
    fit,
)
from deploy.evaluation.recording import Recording
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.launch.workers import load_pair
from orchestrator.answers.equality import compare
from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    Unsupported,
    WorkerUnavailable,
)
from policies.gate import DraftSignal, LogisticModel, ReadingSignal, probability
from workers.worker import EngineWorker

ARGS = load(DEFAULT_FILE).args
SPECREASON = Candidate("s", "specreason", {"scoring": "likelihood", "threshold": 5})


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[Any, Any]]:
    workers = load_pair(ARGS.workers)
    yield workers
    for worker in workers.values():
        assert isinstance(worker, EngineWorker)
        worker.close()


async def same(text: str, answer: str) -> bool:
    return compare(text, answer) is True


async def recorded(
    workers: Any, count: int, *, temperature: float = 0.0, candidate: Candidate = SPECREASON
) -> list[Recording]:
    client = LocalClient(ARGS, workers, RequestOptions(temperature=temperature), recording=True)
    answers = [await ask(client, one.question, candidate) for one in draw("train", 5, count)]
    return [answer.recording() for answer in answers if answer.recording is not None]


async def test_every_draft_of_a_chain_is_found(pair: Any) -> None:
    (recording,) = await recorded(pair, 1)
    found = await drafts(recording)
    steps = [step for step in recording.steps if step.author == "small"]
    assert [one.draft.text.strip() for one in found] == [
        step.text.strip() for step in steps if step.phase == "thought"
    ]
    assert all(one.draft.logprobs and one.criteria.until == ("\n\n",) for one in found)


async def test_requests_that_are_sampled_lossy_or_of_one_model_teach_nothing(pair: Any) -> None:
    (sampled,) = await recorded(pair, 1, temperature=0.8)
    assert await drafts(sampled) == []
    (alone,) = await recorded(pair, 1, candidate=Candidate("l", "large-only"))
    assert await drafts(alone) == []
    (own,) = await recorded(pair, 1)
    mixed = replace(own, speculation={"small": "vanilla", "large": "reflective (lossy)"})
    assert await by_question([sampled, alone, mixed]) == []
    assert await examples([], pair, same) == ([], [])


async def test_what_was_drafted_twice_for_a_question_counts_once(pair: Any) -> None:
    (recording,) = await recorded(pair, 1)
    (other,) = await recorded(pair, 1, candidate=Candidate("t", "specreason", {"threshold": 0}))
    (own,) = await by_question([recording, other, recording])
    assert len(own) < len(await drafts(recording)) + len(await drafts(other))
    assert len({(one.transcript.text, one.draft.text) for one in own}) == len(own)


class Failing:
    """The large model, whose readings fail; of one draft, or of all."""

    def __init__(self, worker: Any, error: Exception, draft: str | None = None) -> None:
        self.worker, self.error, self.draft = worker, error, draft

    async def verify(self, call: Any, segment: Any, *given: Any) -> Any:
        if self.draft in (None, segment.text):
            raise self.error
        return await self.worker.verify(call, segment, *given)

    def generate(self, *given: Any, **named: Any) -> Any:
        return self.worker.generate(*given, **named)


async def test_drafts_that_a_worker_fails_are_counted_and_left_out(pair: Any) -> None:
    (question,) = await by_question(await recorded(pair, 1))
    whole, failures = await examples([question], pair, same)
    assert len(whole) > 1
    assert failures == []

    async def failing(error: Exception, draft: str | None = None) -> Any:
        workers = {**pair, "large": Failing(pair["large"], error, draft)}
        return await examples([question], workers, same)

    full = ContextLengthExceeded("the context is full")
    found, failures = await failing(full, question[0].draft.text)
    assert failures == ["the context is full"]
    assert [one.draft for one in found] == [one.draft for one in whole[1:]]
    found, failures = await failing(WorkerUnavailable("gone"))
    assert (found, set(failures)) == ([], {"gone"})
    assert 2 <= len(failures) <= len(question)
    with pytest.raises(Unsupported):
        await failing(Unsupported("no log-probabilities"))


async def test_a_rewrite_by_the_same_model_never_helps(pair: Any) -> None:
    twins = {"small": pair["large"], "large": pair["large"]}
    found, _ = await examples(await by_question(await recorded(twins, 3)), twins, same)
    assert len(found) >= 3
    assert not any(example.helps for example in found)


async def test_what_helps_is_found_by_running_both_branches(pair: Any) -> None:
    questions = await by_question(await recorded(pair, 12))
    done: list[int] = []
    found, _ = await examples(questions, pair, same, concurrency=4, progress=done.append)
    assert done == list(range(1, 13))
    helped = [example for example in found if example.helps]
    assert 0 < len(helped) < len(found)
    # What the large model would have written otherwise it also finds unlikely.
    worst = [example.reading["read_mean"] for example in helped]
    others = [example.reading["read_mean"] for example in found if not example.helps]
    assert np.mean(worst) > np.mean(others)


def simulated(count: int) -> list[GateExample]:
    """Drafts whose rewrite helps with a probability that their worst token tells exactly."""
    random = Random(1)
    empty = dict.fromkeys(get_args(DraftSignal), 0.0)
    read = dict.fromkeys(get_args(ReadingSignal), 0.0)
    found = []
    for number in range(count):
        worst = random.gauss(2.0, 1.0)
        helps = random.random() < 1 / (1 + exp(3.0 - 2.0 * worst + 1.0))
        found.append(GateExample(number // 3, {**empty, "worst": worst}, read, helps))
    return found


def test_the_fit_finds_the_law_that_made_the_examples() -> None:
    report = fit(simulated(3000))
    model = report.gate.draft
    assert isinstance(model, LogisticModel)
    assert set(model.weights) == {"worst"}  # what never varies tells nothing
    assert model.weights["worst"] == pytest.approx(2.0, abs=0.2)
    assert model.bias == pytest.approx(-4.0, abs=0.5)
    assert report.requests == 1000
    for said, helped, count in report.draft.reliability:
        assert abs(said - helped) < 4 * (said * (1 - said) / count) ** 0.5 + 0.01
    # The reading adds nothing here, and takes over what the draft said.
    assert report.reading.auc == pytest.approx(report.draft.auc, abs=0.01)


def test_probabilities_are_what_happened_where_the_law_is_no_logistic_one() -> None:
    """However doubtful a draft looks below a bend, one rewrite in fifty helps; above it, half."""
    random = Random(2)
    found = []
    for example in simulated(6000):
        helps = random.random() < (0.5 if example.draft["worst"] > 2.5 else 0.02)
        found.append(replace(example, helps=helps))
    report = fit(found)
    model = report.gate.draft
    assert model is not None
    assert model.curve
    straight = model.model_copy(update={"curve": ()})
    sure = {**found[0].draft, "worst": 0.0}
    assert probability(straight.logit(sure)) < 0.01  # what the logistic law alone would claim
    assert probability(model.logit(sure)) == pytest.approx(0.02, abs=0.008)
    doubtful = probability(model.logit({**sure, "worst": 3.5}))
    assert doubtful == pytest.approx(0.5, abs=0.08)
    for said, helped, count in report.draft.reliability:
        assert abs(said - helped) < 4 * (said * (1 - said) / count) ** 0.5 + 0.02


def test_nothing_is_certain() -> None:
    logits = np.arange(100.0)
    curve = calibration_curve(logits, logits >= 50)
    assert [round(probability(worth), 3) for _, worth in curve] == [0.02, 0.98]  # 1 of 51
    assert [place for place, _ in curve] == pytest.approx([24.02, 74.98], abs=0.01)
    with np.errstate(all="raise"):
        assert len(calibration_curve(logits, logits >= 100)) == 1  # none helped


def test_equal_logits_are_worth_the_same_in_any_order() -> None:
    logits = np.array([0.0] * 40 + [1.0] * 40 + [1.00001] * 40)
    outcomes = np.arange(120) % 4 == 0
    outcomes[40:] = ~outcomes[40:]
    curve = calibration_curve(logits, outcomes)
    assert curve == calibration_curve(logits[::-1], outcomes[::-1])
    assert [place for place, _ in curve] == [0.0, 1.0]
    helpful_first = np.argsort(~outcomes, kind="stable")
    assert curve == calibration_curve(logits[helpful_first], outcomes[helpful_first])
    assert probability(curve[0][1]) == pytest.approx(11 / 41, abs=1e-4)


@pytest.mark.parametrize("questions", [5, 6])
def test_as_few_questions_as_the_check_lets_pass_are_enough(questions: int) -> None:
    found = [replace(one, request=at % questions) for at, one in enumerate(simulated(300))]
    assert fit(found).requests == questions


@pytest.mark.parametrize("helped", [True, False])
def test_examples_of_one_kind_fit_nothing(helped: bool) -> None:
    found = [GateExample(one.request, one.draft, one.reading, helped) for one in simulated(100)]
    with pytest.raises(BatonError, match="record more greedy requests"):
        fit(found)
