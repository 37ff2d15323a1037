"""The learning rate's trapezoid, caps in tokens and in minutes, and going on after a break."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deploy.lab.pair.progress import Progress, load_state, save_state


@dataclass(frozen=True)
class Plan:
    tokens: int = 1000
    minutes: float | None = None
    warmup: int = 4
    decay: float = 0.5
    checkpoint_minutes: float = 3.0


def test_warm_up_plateau_and_decay_to_nothing() -> None:
    progress = Progress(Plan())
    scales = [progress.advance(100) for _ in range(10)]
    assert scales[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert scales[5:] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    assert progress.over


def test_a_cap_of_minutes_ends_the_run_with_its_decay() -> None:
    progress = Progress(Plan(tokens=10**9, minutes=2, warmup=1))
    assert progress.advance(10, elapsed=60.0) == pytest.approx(1.0)
    assert progress.advance(10, elapsed=90.0) == pytest.approx(0.5)
    assert not progress.over
    assert progress.advance(10, elapsed=120.0) == 0
    assert progress.over


def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    first = Progress(Plan())
    for _ in range(3):
        first.advance(100, elapsed=30.0)
    save_state(tmp_path / "run", first.state() | {"weights": torch.ones(2)})
    state = load_state(tmp_path / "run", "cpu")
    assert state is not None
    assert state["weights"].tolist() == [1, 1]
    second = Progress(Plan())
    second.resume(state)
    assert second.elapsed >= 30.0
    assert second.advance(100, elapsed=31.0) == first.advance(100, elapsed=31.0)
    assert second.state() == first.state()


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert load_state(tmp_path, "cpu") is None


def test_the_last_step_is_logged_and_saved() -> None:
    progress = Progress(Plan())
    progress.advance(100)
    assert progress.log_due() is None
    assert not progress.checkpoint_due()
    progress.advance(900, elapsed=12.0)
    assert progress.log_due() is not None
    assert progress.checkpoint_due()
    assert "step 2 0.00M tokens loss 1 lr x0.000 left 0 s" in progress.log_line("loss 1")
