"""An event loop in virtual time: hours of waiting pass at once, and every run is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from selectors import DefaultSelector, SelectorKey
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else is left to do.

    It waits for nothing outside: with neither a timer nor a callback left it raises RuntimeError.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let so much time pass."""
        self._now += seconds


class _Jumping(DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is left to wake one")
        self._loop.jump(max(0.0, timeout))
        return super().select(0)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
