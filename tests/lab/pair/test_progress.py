"""The learning rate's trapezoid, and the log of a run."""

from __future__ import annotations

import pytest

from deploy.lab.pair.progress import Progress, Schedule


def test_warm_up_plateau_and_decay_to_nothing() -> None:
    progress = Progress(Schedule(tokens=1000, warmup=4))
    scales = [progress.advance(100) for _ in range(10)]
    assert scales[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert scales[5:] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])
    assert progress.share == 1


def test_the_last_step_is_logged() -> None:
    lines: list[str] = []
    progress = Progress(Schedule(tokens=1000), lines.append)
    progress.advance(100)
    progress.report(2.0)
    assert lines == []
    progress.advance(900)
    progress.report(1.0)
    assert lines == ["100.0% step 2 0.00M tokens loss 1.0000 left 0 s"]
