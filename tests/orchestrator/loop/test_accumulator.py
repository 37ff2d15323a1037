"""One request's totals, folded from its events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Overloaded,
    WorkerUnavailable,
)
from orchestrator.loop.accumulator import ResponseAccumulator, error_kind
from orchestrator.loop.actions import Accept, Classify, Generate, Reject, Verify, Write
from orchestrator.loop.events import ActionCompleted, Metrics
from orchestrator.types import (
    Classification,
    Generation,
    Message,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
    Verification,
)

TRANSCRIPT = Transcript((Message("user", "2+2?"),))
LATER = TRANSCRIPT.extend(Segment("large", "a", (1,)))
CRITERIA = StopCriteria(9)


def made(author: Any, tokens: int, usage: Usage | None = None, ms: float = 0.0) -> Generation:
    segment = Segment(author, "x" * tokens, tuple(range(tokens)))
    return Generation(segment, usage or Usage(10, 4, tokens, tokens), ms)


def totals(*results: tuple[Any, Any] | tuple[Any, Any, float]) -> Metrics:
    response = ResponseAccumulator()
    for action, answer, *ms in results:
        response.add(ActionCompleted(action, answer, ms[0] if ms else 1.0))
    return response.totals(50.0)


def test_nothing() -> None:
    assert totals().acceptance_rate is None
    assert totals().ms == {"small": 0, "large": 0, "classify": 0, "total": 50.0}


def test_choices_that_are_given_up_stay_in_the_totals() -> None:
    """Of a verification they are known by having been kept."""
    read = Verification((), (5,), Usage(10, 0, 1))
    choice = Segment("large", "abcd", (1, 2, 3, 4))
    accepted = ActionCompleted(Accept(LATER, choice, None), LATER, 0.0)
    for early in (False, True):  # at once, or when the budget is up later
        response = ResponseAccumulator()
        response.add(ActionCompleted(Verify("large", LATER, Segment("small", "")), read, 1.0))
        if early:
            response.give_up(choice)
        response.add(accepted)
        if not early:
            assert response.totals(1.0).discarded_tokens == 0
            response.give_up(choice)
        after = response.totals(1.0)
        assert (after.large_tokens, after.discarded_tokens) == (4, 4)


def test_tokens_that_were_run_ahead_are_counted_once_adopted() -> None:
    ahead = Usage(10, 10, generated=5, adopted=4)
    more = Usage(10, 10, generated=3, adopted=1)
    metrics = totals(
        (Generate("small", TRANSCRIPT, CRITERIA), made("small", 5, ahead)),
        (Write("large", TRANSCRIPT, CRITERIA), made("large", 3, more)),
    )
    assert (metrics.small_tokens, metrics.large_tokens, metrics.adopted_tokens) == (5, 3, 5)


def test_a_request() -> None:
    draft, rewrite = made("small", 5), made("large", 3)
    digits = Classification(("0",), (1.0,), 0.0, Usage(20, 15, 0, 1))
    metrics = totals(
        (Generate("large", TRANSCRIPT, StopCriteria(0)), made("large", 0, Usage(12)), 2.0),
        (Generate("small", TRANSCRIPT, StopCriteria(0)), made("small", 0, Usage(11)), 2.0),
        (Generate("small", TRANSCRIPT, CRITERIA), draft, 5.0),
        (Classify("large", TRANSCRIPT, (), "", ("0",)), digits, 3.0),
        (Reject(draft.segment, 0.0), None),
        (Write("large", TRANSCRIPT, CRITERIA), rewrite, 7.0),
        (Generate("small", LATER, CRITERIA), draft, 5.0),
        (Classify("large", TRANSCRIPT, (), "", ("0",)), digits, 3.0),
        (Accept(LATER, draft.segment, 9.0), TRANSCRIPT),
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
    metrics = totals(
        (Generate("small", TRANSCRIPT, CRITERIA), draft),
        (Verify("large", TRANSCRIPT, draft.segment), Verification((0.1,) * 5, (1,) * 6)),
        (Accept(TRANSCRIPT, kept), TRANSCRIPT),
        (Accept(TRANSCRIPT, Segment("large", "y", (7,))), TRANSCRIPT),
        (Accept(TRANSCRIPT, Segment("policy", "wait")), TRANSCRIPT),
    )
    assert (metrics.small_tokens, metrics.large_tokens, metrics.discarded_tokens) == (5, 1, 3)
    assert metrics.acceptance_rate is None


def test_a_workers_own_choices_are_no_accepted_drafts() -> None:
    draft = made("small", 5)
    metrics = totals(
        (Generate("small", TRANSCRIPT, CRITERIA), draft),
        (Verify("large", TRANSCRIPT, draft.segment), Verification((0.1,) * 5, (1,) * 6)),
        (Reject(draft.segment), None),
        (Accept(TRANSCRIPT, Segment("large", "y", (7,))), TRANSCRIPT),
    )
    assert metrics.acceptance_rate == 0


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
    assert error_kind(error) == name
    assert ResponseAccumulator().outcome(error) == name
