"""The cost of a step and of a remote delta stays the same as a thought grows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from deploy.lab.bench import length
from workers.embedded.checkpoints import resolve
from workers.text.tokenizer_files import load_tokenizer

POLICIES = (
    "small-only", "specreason", "bild", "speculative-thinking", "cascade", "surprise-takeover",
)  # fmt: skip


@pytest.fixture
def calls_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count millions of function calls instead of seconds of CPU time: the same each run."""
    called = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    monkeypatch.setattr(length, "thread_time", lambda: called / 1e6)
    sys.setprofile(count)
    yield
    sys.setprofile(None)


@pytest.mark.usefixtures("calls_counted")
@pytest.mark.parametrize("way", length.WAYS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_takes_as_many_calls_however_long_the_thought(policy: str, way: str) -> None:
    (row,) = length.bench_steps([policy], [30, 300], repeats=1, ways=[way])
    assert row["growth"] < 1.25, row


@pytest.mark.usefixtures("calls_counted")
def test_a_remote_delta_takes_as_many_calls_however_long_the_answer() -> None:
    tokenizer = load_tokenizer(str(resolve("embedded:large")))
    length.bench_deltas(tokenizer, [10])  # code that runs only once runs here
    short, long = length.bench_deltas(tokenizer, [200, 2000])
    assert long["us"] < 1.25 * short["us"]
