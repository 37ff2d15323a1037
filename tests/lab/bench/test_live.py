"""Many requests at once over paced workers, and the memory that one holds."""

from __future__ import annotations

import pytest

from deploy.lab.bench.instant import STEP
from deploy.lab.bench.live import PacedWorker, bench_live, request_bytes
from orchestrator.types import Generation, Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call, Delta

HELD_BYTES = 300
"""Limit on the bytes a token that a live request holds."""


@pytest.mark.parametrize("policy", ["specreason", "large-only"])
def test_all_requests_are_answered_and_measured(policy: str) -> None:
    row = bench_live(policy, live=3, tokens=10 * STEP, token_s=0.0005)
    assert (row["live"], row["tokens"]) == (3, 10 * STEP)
    assert row["seconds"] >= 10 * STEP * 0.0005
    assert row["lag_p99_ms"] > 0
    assert row["step_us"] == pytest.approx(STEP * row["cpu_us"])


async def test_a_stream_comes_in_pieces_that_make_the_whole() -> None:
    call = Call("r", Transcript((Message("user", "How many?"),)), "large")
    worker = PacedWorker(2, token_s=0.005)
    items = [item async for item in worker.generate(call, StopCriteria(1000), Sampling())]
    deltas, whole = items[:-1], items[-1]
    assert isinstance(whole, Generation)
    assert all(isinstance(delta, Delta) and len(delta.tokens) <= 4 for delta in deltas)
    assert "".join(delta.text for delta in deltas) == whole.segment.text
    assert sum((delta.tokens for delta in deltas), ()) == whole.segment.tokens


def test_what_a_request_holds_is_bounded_by_its_tokens() -> None:
    short, long = request_bytes(40 * STEP), request_bytes(240 * STEP)
    assert 0 < long < HELD_BYTES
    assert long < 1.1 * short  # it grows no faster than the thought
