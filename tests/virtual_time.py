"""An event loop whose clock jumps to the next timer when nothing is left to do before it.

Seconds cost nothing and a busy machine changes none of them. A test without threads or sockets asks
for it by `@pytest.mark.virtual_time`.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Jumping(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("every task waits for something that cannot come")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def skip(self, seconds: float) -> None:
        """Let time pass at once, as for a process that is stopped."""
        self._jumping.now += seconds


def virtual_time() -> VirtualTime:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTime)
    return loop
