"""Length and schedule of a training run: the trapezoid of https://arxiv.org/abs/2405.18392.

The learning rate rises linearly over the warm-up, stays, and falls linearly to 0 at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LOG_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The length of a run and the size of its steps."""

    tokens: int
    warmup: int = 40  # steps
    decay: float = 0.5  # last share of the run
    batch_tokens: int = 4096  # padding included
    clip: float = 1.0  # most that the gradient's norm may be
    seed: int = 0


class Progress:
    """Counts a run's tokens and steps, and logs them."""

    def __init__(self, schedule: Schedule, log: Callable[[str], None] = print) -> None:
        self._schedule, self._log = schedule, log
        self._start = self._logged = time.monotonic()
        self.tokens = self.step = 0

    @property
    def share(self) -> float:
        """The part of the run that is over, from 0 to 1 and a little more."""
        return self.tokens / self._schedule.tokens

    def advance(self, tokens: int) -> float:
        """Count one step over `tokens` tokens; return the factor of its learning rates."""
        self.tokens, self.step = self.tokens + tokens, self.step + 1
        rising = min(1.0, self.step / self._schedule.warmup)
        return rising * min(1.0, max(0.0, 1 - self.share) / self._schedule.decay)

    def report(self, loss: float) -> None:
        """Log a line every `LOG_SECONDS`, and at the end."""
        now = time.monotonic()
        if now - self._logged < LOG_SECONDS and self.share < 1:
            return
        self._logged = now
        left = (now - self._start) * (1 - self.share) / self.share
        self._log(
            f"{self.share:6.1%} step {self.step} {self.tokens / 1e6:.2f}M tokens"
            f" loss {loss:.4f} left {left:.0f} s"
        )
