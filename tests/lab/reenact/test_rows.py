"""Rows by hand, and beside what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.lab.call_costs import Costs, load_costs
from deploy.lab.reenact import rows
from deploy.lab.reenact.dialogues import Dialogue, shipped
from deploy.lab.reenact.engine import VirtualRow
from deploy.lab.reenact.virtual_worker import AheadRow
from orchestrator.errors import ConfigError
from orchestrator.types import Segment, Segments, Transcript

WORKER = {"model": "m", "call_ms": 2, "read_ms": 1, "read_token_ms": 0}
COSTS = Costs.model_validate(
    {
        "name": "toy",
        "hardware": "a desk",
        "sources": ["made up"],
        "small": {**WORKER, "token_ms": {1: 1, 8: 1}},
        "large": {**WORKER, "token_ms": {1: 10, 8: 10}},
        "speculation": {"drafts": 2, "tokens_a_round": 3},
    }
)


def some(*policies: str) -> list[Dialogue]:
    """The first two questions."""
    return [
        one
        for one in shipped()
        if one.policy in policies and one.question in ("gsm_symbolic-0", "gsm_symbolic-1")
    ]


def test_a_row_for_each_policy_and_number_of_clients() -> None:
    played = some("large-only", "small-only")
    found = rows.table(played, COSTS, [1, 2])
    assert [(row["policy"], row["clients"]) for row in found] == [
        (policy, clients)
        for clients in (1, 2)
        for policy in ("large-only", "large-only:speculating", "small-only")
    ]
    tokens = [one.recording.calls[-1].answer.usage.generated for one in some("large-only")]  # type: ignore[union-attr]
    # Two calls, a pass that reads the prompt, and one for each token.
    expected = [(2 + 10 + 2 + 10 * count) / 1000 for count in tokens]
    large, speculating, small = found[:3]
    assert large["seconds"] == pytest.approx(sum(expected) / 2)
    assert large["requests_per_s"] == pytest.approx(2 / sum(expected))
    assert large["ratio"] == speculating["ratio_speculating"] == 1
    assert small["ratio"] == pytest.approx(small["requests_per_s"] / large["requests_per_s"])
    # After the first token a round of 10 + 2 ms makes three.
    expected = [(2 + 10 + 2 + 10 + 12 * -(-(count - 1) // 3)) / 1000 for count in tokens]
    assert speculating["seconds"] == pytest.approx(sum(expected) / 2)
    assert large["ratio_speculating"] == pytest.approx(1 / speculating["ratio"])


def test_what_cannot_be_played() -> None:
    with pytest.raises(ConfigError, match="no recordings of large-only"):
        rows.table(some("small-only"), COSTS, [1])
    with pytest.raises(ConfigError, match="toy: has figures up to 8 requests at once, not for 9"):
        rows.table(some("large-only"), COSTS, [1, 9])


def test_the_errors_beside_the_measured_rows() -> None:
    """Those that docs and costs tell: a tenth, but for two policies whose calls took longer."""
    known: dict[Any, float] = {("specreason", 1): 0.14, ("learned-gate", 1): 0.18}
    found = rows.against_measured(shipped(), load_costs("measured-1.5b-32b-h100"))
    assert len(found) == 6
    for row in found:
        assert abs(row["error"]) < known.get((row["policy"], row["clients"]), 0.1), row


def test_running_ahead_changes_times_alone() -> None:
    """All calls are found on record, and the small model's texts are there when asked for."""
    played = some("large-only", "bild")
    plain, ahead = (
        {row["policy"]: row["seconds"] for row in rows.table(played, COSTS, [2], run_ahead)}
        for run_ahead in (0, 32)
    )
    assert ahead["large-only"] == plain["large-only"]
    assert ahead["bild"] < 0.9 * plain["bild"]


def test_what_a_row_that_runs_ahead_still_lacks() -> None:
    def transcript(*tokens: int) -> Transcript:
        segments = [Segment("small", "", (token,)) for token in tokens]
        return Transcript((), answer=Segments(segments)).without_thought()

    row = VirtualRow(0)
    assert AheadRow(row, (1, 2), 0).lacks(transcript(1, 2)) == 0
    assert AheadRow(row, (1, 2), 0).lacks(transcript(1, 2, 9)) == 1  # the large model's token
    assert AheadRow(row, (1, 2), 1).lacks(transcript(1, 2, 9)) == 0  # in place of a doubtful one
    assert AheadRow(row, (1, 2), 0).lacks(transcript(1, 9)) is None
    assert AheadRow(row, (1, 2), 0).lacks(transcript(1)) is None
