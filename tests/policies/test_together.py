"""Every step-level policy on real engines with the shipped large model on both sides.

Where both workers are the same model and decode greedily, every draft is what the large model
would have written: a policy may then change who writes, never what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.evaluation.recording import compare, replayed
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.workers import load_worker
from orchestrator.loop.budget import spent
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling
from policies import POLICIES
from tests.deploy.evaluation.recorded_runs import recorded
from workers.worker import EngineWorker

PROBLEMS = draw("dev", 11, 2)
ARGS = load(DEFAULT_FILE).args
STEPWISE = [name for name in POLICIES if name not in ("small-only", "large-only")]


@pytest.fixture
def workers(large: EngineWorker) -> dict[str, EngineWorker]:
    """One engine on both sides."""
    return {"small": large, "large": large}


ALONE: dict[str, tuple[str, str]] = {}


async def alone(workers: Any, question: str) -> tuple[str, str]:
    """What the large model thinks and answers without anybody's help."""
    if question not in ALONE:
        _, ended = await run(made("large-only"), workers, question)
        ALONE[question] = (ended.transcript.text, ended.transcript.answer[0].text)
    return ALONE[question]


def made(name: str, **more: Any) -> Policy:
    return POLICIES[name](**{**ARGS.policy.params.get(name, {}), **more})


async def run(
    policy: Policy, workers: Any, question: str, sampling: Sampling | None = None, **limits: Any
) -> tuple[list[Event], RequestCompleted]:
    asked = (Message("user", question),)
    request = Request("r", asked, sampling or Sampling(), Limits(**limits))
    events = [event async for event in solve(policy, request, workers)]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    return events, ended


def said(ended: RequestCompleted) -> tuple[Any, ...]:
    """Ids of thought and answer, and how they ended: log-probabilities depend on the batch."""
    transcript = ended.transcript
    parts = (*transcript.thought, *transcript.answer)
    return [part.tokens for part in parts], transcript.forced, transcript.finish


ENDS: list[tuple[str, dict[str, Any]]] = [
    ("specreason", {"threshold": 0}),
    ("specreason", {"threshold": 9.5}),
    ("learned-gate", {}),
    ("learned-gate", {"risk": 0, "correct_above": 0}),
    ("learned-gate", {"gate": {}, "hopeless": 0}),
    ("cascade", {}),
    ("cascade", {"accept_at": 0}),
    ("cascade", {"signal": "digit"}),
    # The small model goes on in mid-sentence where the large one has spent what it may.
    ("large-only", {"max_large_tokens": 7}),
    ("specreason", {"threshold": 9.5, "max_large_tokens": 13}),
    ("bild", {"max_large_tokens": 6}),
]


@pytest.mark.parametrize(("name", "parameters"), ENDS)
async def test_with_equal_models_everybody_says_the_same(
    workers: Any, name: str, parameters: dict[str, Any]
) -> None:
    for problem in PROBLEMS:
        _, ended = await run(made(name, **parameters), workers, problem.question)
        # A blank draft or a loop may end otherwise; on these problems there is neither.
        said = (ended.transcript.text, ended.transcript.answer[0].text)
        assert said == await alone(workers, problem.question)
    assert all(worker.stats()["live_rows"] == 0 for worker in workers.values())


@pytest.mark.parametrize("name", STEPWISE)
async def test_sampled_requests_end_and_replay(workers: Any, name: str) -> None:
    policy, sampling = made(name), Sampling(0.8, seed=5)
    question = PROBLEMS[1].question
    asked = Request("r", (Message("user", question),), sampling)
    recording, _, ended = await recorded(policy, asked, workers)
    assert ended.transcript.done
    *_, again = [event async for event in replayed(recording, policy)]
    assert isinstance(again, RequestCompleted)
    assert again.transcript == ended.transcript
    assert (await compare(recording, policy))[1] is None


@pytest.mark.parametrize("name", STEPWISE)
async def test_a_budget_of_one_token(workers: Any, name: str) -> None:
    _, ended = await run(made(name, budget=1), workers, PROBLEMS[0].question)
    assert ended.transcript.thought.tokens <= 1
    assert ended.transcript.done
    assert all(worker.stats()["live_rows"] == 0 for worker in workers.values())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("problem", [PROBLEMS[0], *draw("heldout", 3, 1)], ids=lambda p: p.question)
async def test_a_cap_that_the_answer_fits_in_changes_nothing(
    workers: Any, problem: Any, sampling: Sampling
) -> None:
    policy, question = made("large-only"), problem.question
    _, whole = await run(policy, workers, question, sampling)
    need = spent(whole.transcript)
    for spare in (0, 1, 10):
        _, ended = await run(policy, workers, question, sampling, max_tokens=need + spare)
        assert ended.transcript == whole.transcript
        assert ended.transcript.finish == "stop"
    for missing in (1, 5, 20):
        _, ended = await run(policy, workers, question, sampling, max_tokens=need - missing)
        assert (ended.transcript.finish, ended.transcript.done) == ("length", True)
        assert spent(ended.transcript) <= need - missing


async def test_of_fifteen_answers_none_changes_by_a_cap_ten_tokens_above_it(workers: Any) -> None:
    policy = made("large-only")

    async def unchanged(question: str) -> bool:
        _, whole = await run(policy, workers, question)
        cap = spent(whole.transcript) + 10
        _, ended = await run(policy, workers, question, max_tokens=cap)
        return said(ended) == said(whole)

    asked = (unchanged(problem.question) for problem in draw("heldout", 4, 15))
    assert await asyncio.gather(*asked) == [True] * 15


@pytest.mark.parametrize("name", POLICIES)
async def test_a_cap_of_any_size_cuts_every_policy(workers: Any, name: str) -> None:
    question = PROBLEMS[0].question
    _, whole = await run(made(name), workers, question)
    need = spent(whole.transcript)
    for max_tokens in (1, 2, need // 2, need - 9, need - 1, need):
        _, ended = await run(made(name), workers, question, max_tokens=max_tokens)
        assert ended.transcript.finish == ("stop" if max_tokens == need else "length")
        assert spent(ended.transcript) <= max_tokens


async def test_an_end_of_turn_that_is_ignored_ends_nothing(workers: Any) -> None:
    _, whole = await run(made("large-only"), workers, PROBLEMS[0].question)
    size = spent(whole.transcript) + 20
    events, ended = await run(
        made("large-only"), workers, PROBLEMS[0].question, max_tokens=size, ignore_eos=True
    )
    transcript = ended.transcript
    assert (spent(transcript), transcript.finish) == (size, "length")
    assert transcript.thought == whole.transcript.thought  # which its own end still ends
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert said.startswith(whole.transcript.text + whole.transcript.answer[0].text)
    assert "<|" not in said


async def test_a_model_that_thinks_can_be_asked_not_to(workers: Any) -> None:
    for name in ("large-only", "specreason"):
        _, ended = await run(
            made(name), workers, PROBLEMS[0].question, max_tokens=60, thinking=False
        )
        transcript = ended.transcript
        assert (transcript.thought, transcript.thinking, transcript.done) == ((), False, True)
        assert transcript.answer


@pytest.fixture(scope="module")
def plain() -> Iterator[dict[str, EngineWorker]]:
    """One engine on both sides, whose model is not to think."""
    spec = ARGS.workers.large.model_copy(update={"thinking": "none"})
    worker = load_worker(spec)
    yield {"small": worker, "large": worker}
    worker.close()


@pytest.mark.parametrize("name", POLICIES)
async def test_without_a_thought_every_policy_writes_the_answer(name: str, plain: Any) -> None:
    """Advice would be a thought of the pair's, so the advisor gives none here."""
    more = {"max_uses": 0} if name == "advisor" else {}
    _, expected = await run(made("large-only"), plain, PROBLEMS[0].question, max_tokens=60)
    asked = (Message("user", PROBLEMS[0].question),)
    request = Request("r", asked, limits=Limits(max_tokens=60))
    recording, events, ended = await recorded(made(name, **more), request, plain)
    transcript = ended.transcript
    assert (transcript.thought, transcript.thinking, transcript.done) == ((), False, True)
    assert transcript.text == expected.transcript.text != ""
    assert transcript.finish == expected.transcript.finish
    assert {event.phase for event in events if isinstance(event, TextDelta)} == {"answer"}
    *_, again = [event async for event in replayed(recording, made(name, **more))]
    assert isinstance(again, RequestCompleted)
    assert again.transcript == transcript
