"""How far a training run is, in tokens, steps and seconds, and the learning rate that follows.

The trapezoid of https://arxiv.org/abs/2405.18392: a linear warm-up, a plateau, a linear decay to 0
over the last share of progress. Progress is the larger of the shares of tokens and of minutes, so
a run whose time is capped still ends its decay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

STATE = "state.pt"
"""The file that a run is resumed from, beside what it exports."""
LOG_SECONDS = 10.0
"""Seconds between two lines of the log."""


class Schedule(Protocol):
    """The length and schedule of a run; `minutes` None is no cap, `warmup` in steps."""

    @property
    def tokens(self) -> int: ...
    @property
    def minutes(self) -> float | None: ...
    @property
    def warmup(self) -> int: ...
    @property
    def decay(self) -> float: ...
    @property
    def checkpoint_minutes(self) -> float: ...


class Progress:
    """Counts a run's tokens and steps, resumed ones included.

    share: how much of the run is over, from 0 to 1 and a little more; scale: the factor of all
    learning rates.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._start = self._logged = self._saved = time.monotonic()
        self._before = 0.0
        self.tokens = self.step = 0
        self.share = self.scale = self._elapsed = 0.0

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved `state`."""
        self.tokens, self.step = state["tokens"], state["step"]
        self._before = self._elapsed = state["elapsed"]

    def state(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "step": self.step, "elapsed": self._elapsed}

    @property
    def over(self) -> bool:
        return self.share >= 1

    @property
    def elapsed(self) -> float:
        """Seconds of this run and of those it goes on from."""
        return self._before + time.monotonic() - self._start

    def advance(self, tokens: int, elapsed: float | None = None) -> float:
        """Count one step over so many tokens; the factor of its learning rates.

        `elapsed` is the time that several processes agree on.
        """
        schedule = self._schedule
        self.tokens, self.step = self.tokens + tokens, self.step + 1
        self._elapsed = self.elapsed if elapsed is None else elapsed
        self.share = self.tokens / schedule.tokens
        if schedule.minutes is not None:
            self.share = max(self.share, self._elapsed / 60 / schedule.minutes)
        rising = min(1.0, self.step / schedule.warmup)
        self.scale = rising * min(1.0, max(0.0, 1 - self.share) / schedule.decay)
        return self.scale

    def log_due(self) -> float | None:
        """Seconds since the last line of the log, if it is time for another."""
        passed = time.monotonic() - self._logged
        if passed < LOG_SECONDS and not self.over:
            return None
        self._logged += passed
        return passed

    def log_line(self, figures: str) -> str:
        """A line of the log."""
        left = self._elapsed * (1 - self.share) / max(self.share, 1e-9)
        return (
            f"{self.share:6.1%} step {self.step} {self.tokens / 1e6:.2f}M tokens {figures}"
            f" lr x{self.scale:.3f} left {left:.0f} s"
        )

    def checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint; the next one counts from here."""
        due = self.over or (
            time.monotonic() - self._saved >= 60 * self._schedule.checkpoint_minutes
        )
        if due:
            self._saved = time.monotonic()
        return due


def save_state(out: Path, state: Mapping[str, Any]) -> None:
    """Write the state to resume from; an interruption leaves the last one whole."""
    out.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state), out / f"{STATE}.new")
    os.replace(out / f"{STATE}.new", out / STATE)


def load_state(out: Path, device: str) -> dict[str, Any] | None:
    """The state that the last run in `out` left; None where there was none."""
    if not (out / STATE).exists():
        return None
    state: dict[str, Any] = torch.load(out / STATE, map_location=device, weights_only=True)
    return state
