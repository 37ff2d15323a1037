"""What is counted, per request and for the process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Overloaded,
    WorkerUnavailable,
)
from orchestrator.loop.actions import (
    Accept,
    Account,
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Reject,
    Start,
    Verify,
    Write,
)
from orchestrator.loop.events import ActionCompleted, TextDelta
from orchestrator.loop.solve import solve
from orchestrator.telemetry.metrics import ServiceMetrics, Tally, outcome
from orchestrator.types import (
    Classification,
    Cost,
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
    Verification,
)
from policies.specreason import SpecReason
from workers.scripted import Scripted

TRACE = Transcript((Message("user", "2+2?"),))
LATER = TRACE.extend(Segment("large", "a", (1,)))
SPAN = StopCriteria(9)


def made(author: Any, tokens: int, usage: Usage | None = None, ms: float = 0.0) -> Generation:
    segment = Segment(author, "x" * tokens, tuple(range(tokens)))
    return Generation(segment, usage or Usage(10, 4, tokens, tokens), ms)


def tally(*called: tuple[Any, Any] | tuple[Any, Any, float]) -> Any:
    fold = Tally()
    for action, answer, *ms in called:
        fold.add(ActionCompleted(action, answer, ms[0] if ms else 1.0))
    return fold.metrics(50.0)


def test_nothing() -> None:
    assert tally().acceptance_rate is None
    assert tally().ms == {"small": 0, "large": 0, "classify": 0, "total": 50.0}


def test_a_request() -> None:
    draft, rewrite = made("small", 5), made("large", 3)
    law = Classification(("0",), (1.0,), 0.0, Usage(20, 15, 0, 1))
    metrics = tally(
        (Generate("large", TRACE, StopCriteria(0)), made("large", 0, Usage(12)), 2.0),
        (Generate("small", TRACE, StopCriteria(0)), made("small", 0, Usage(11)), 2.0),
        (Generate("small", TRACE, SPAN), draft, 5.0),
        (Classify("large", TRACE, (), "", ("0",)), law, 3.0),
        (Reject(draft.segment, 0.0), None),
        (Write("large", TRACE, SPAN), rewrite, 7.0),
        (Generate("small", LATER, SPAN), draft, 5.0),
        (Classify("large", TRACE, (), "", ("0",)), law, 3.0),
        (Accept(LATER, draft.segment, 9.0), TRACE),
    )
    assert (metrics.small_tokens, metrics.large_tokens, metrics.discarded_tokens) == (10, 3, 5)
    assert (metrics.judge_calls, metrics.acceptance_rate) == (2, 0.5)
    assert metrics.large_passes == 3 + 1 + 1
    assert metrics.prompt_tokens == 12
    assert metrics.prefill_tokens == 12 + 11 + 3 * 6 + 2 * 5
    assert metrics.cached_tokens == 3 * 4 + 2 * 15
    assert metrics.ms == {"small": 12.0, "large": 9.0, "classify": 6.0, "total": 50.0}


def test_a_draft_cut_short_counts_its_rest_as_discarded_and_a_choice_as_made() -> None:
    draft = made("small", 5)
    kept = Segment("small", "xx", (0, 1))
    metrics = tally(
        (Generate("small", TRACE, SPAN), draft),
        (Verify("large", TRACE, draft.segment), Verification((0.1,) * 5, (1,) * 6)),
        (Accept(TRACE, kept), TRACE),
        (Accept(TRACE, Segment("large", "y", (7,))), TRACE),
        (Accept(TRACE, Segment("policy", "wait")), TRACE),
    )
    assert (metrics.small_tokens, metrics.large_tokens, metrics.discarded_tokens) == (5, 1, 3)
    assert metrics.acceptance_rate is None


def test_the_cost_so_far() -> None:
    fold = Tally()
    assert fold.cost() == Cost()
    fold.add(ActionCompleted(Generate("small", TRACE, SPAN), made("small", 5), 4.0))
    before = fold.cost()
    assert before == Cost(small_ms=4.0, small_tokens=5)
    fold.add(ActionCompleted(Account(), None, 0.1))
    law = Classification(("0",), (1.0,))
    fold.add(ActionCompleted(Classify("large", TRACE, (), "", ("0",)), law, 3.0))
    fold.add(ActionCompleted(Write("large", TRACE, SPAN), made("large", 2), 7.0))
    spent = fold.cost() - before
    assert spent == Cost(large_ms=7.0, judge_ms=3.0, large_tokens=2)
    assert spent.ms == 10.0


def test_a_workers_own_choices_are_no_accepted_drafts() -> None:
    draft = made("small", 5)
    metrics = tally(
        (Generate("small", TRACE, SPAN), draft),
        (Verify("large", TRACE, draft.segment), Verification((0.1,) * 5, (1,) * 6)),
        (Reject(draft.segment), None),
        (Accept(TRACE, Segment("large", "y", (7,))), TRACE),
    )
    assert metrics.acceptance_rate == 0


def test_jobs() -> None:
    one, two, three = Job(0), Job(1), Job(2)
    question = Generate("large", TRACE, SPAN)
    metrics = tally(
        (Start(question), one),
        (Start(question), two),
        (Start(Generate("small", TRACE, SPAN)), three),
        (First((one, two)), (one, made("large", 4, ms=8.0)), 99.0),
        (Cancel(two), Usage(generated=2)),
        (First((three,)), (three, WorkerUnavailable("gone"))),
    )
    assert metrics.large_tokens == 6
    assert metrics.discarded_tokens == 6  # neither was accepted
    assert metrics.ms["large"] == 8.0


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
        (ContextLengthExceeded("x"), "invalid"),
        (Overloaded("x"), "overloaded"),
        (WorkerUnavailable("x"), "unavailable"),
        (DeadlineExceeded("x"), "deadline"),
        (ZeroDivisionError(), "error"),
    ],
)
def test_outcomes(error: BaseException, name: str) -> None:
    assert outcome(error) == name


def request(**small: Any) -> Any:
    story = ("a b\n\nc d", "four")
    workers: Any = {
        "small": Scripted(story=story, **small),
        "large": Scripted(story=story, scores=(9, 2)),
    }
    return solve(
        SpecReason(), TRACE.messages, workers, request="r", sampling=Sampling(), limits=Limits()
    )


@pytest.mark.asyncio
async def test_the_processes_series() -> None:
    registry = CollectorRegistry()
    service = ServiceMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"baton_{name}", labels)

    async with aclosing(service.watch("specreason", request())) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                assert value("live_requests") == 1
    assert value("live_requests") == 0
    assert value("requests_total", policy="specreason", outcome="stop") == 1
    assert value("steps_total", author="small", accepted="true") == 1
    assert value("steps_total", author="small", accepted="false") == 1
    assert value("steps_total", author="large", accepted="true") == 2
    assert value("tokens_total", worker="small") == 4
    assert value("tokens_total", worker="large") == 3
    assert value("discarded_tokens_total") == 2
    assert value("judge_calls_total") == 2
    assert value("request_seconds_count", policy="specreason") == 1
    assert value("first_text_seconds_count", policy="specreason") == 1
    text = generate_latest(registry).decode()
    assert "# HELP baton_live_requests Requests whose policy is running now.\n" in text


@pytest.mark.asyncio
async def test_requests_cut_short_are_counted_and_stopped() -> None:
    registry = CollectorRegistry()
    service = ServiceMetrics(registry)
    async with aclosing(service.watch("specreason", request())) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
    sample = registry.get_sample_value
    labels = {"policy": "specreason", "outcome": "cancelled"}
    assert sample("baton_requests_total", labels) == 1
    assert sample("baton_live_requests") == 0
    assert sample("baton_tokens_total", {"worker": "small"}) == 2
    with pytest.raises(Overloaded):
        async for _ in service.watch("specreason", request(down=Overloaded("full"))):
            pass
    labels["outcome"] = "overloaded"
    assert sample("baton_requests_total", labels) == 1
