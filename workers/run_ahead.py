"""Generations that decode on after their call has ended, for the call that continues the text.

vLLM and servers make them meanwhile. Any other generation ends them first, so no live call of this
process shares its passes with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from workers.backend import Prompt

SECONDS: Final = 5.0
"""How long a generation waits for the call that continues its text."""


class RunsAhead(Protocol):
    """A generation that may decode for several calls, one after the other."""

    @property
    def form(self) -> Any:
        """What the calls must have in common, beside the text."""
        ...

    async def leads_to(self, ids: list[int]) -> bool:
        """Return whether it continues a prompt; what it has not given out then follows that."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


R = TypeVar("R", bound=RunsAhead)


class GenerationsAhead(Generic[R]):
    """The generations that run ahead, at most `tokens` each: one for each text that may continue.

    Only the call that adopts one reads it.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._running: dict[tuple[str, str], Sequence[R]] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def keep(self, prompt: Prompt, running: Sequence[R]) -> None:
        """Let generations run after their call has ended."""
        name = _name(prompt)
        self._expire(name)  # of another call, which has ended as well
        self._running[name] = running
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(SECONDS, self._expire, name)

    async def adopt(self, prompt: Prompt, form: Any) -> R | None:
        """Take the generation that continues a prompt, if there is one; end all others."""
        mine = self._take(_name(prompt))
        adopted = None
        try:
            await self.end()
            for one in mine:
                free = prompt.call.constraint is None
                if one.form == form and free and await one.leads_to(prompt.ids):
                    adopted = one
                    break
        finally:  # also if the caller leaves meanwhile
            await _close(one for one in mine if one is not adopted)
        return adopted

    async def end(self) -> None:
        """End all of them."""
        while self._running:
            await _close(self._take(next(iter(self._running))))

    def _take(self, name: tuple[str, str]) -> Sequence[R]:
        if name in self._timers:
            self._timers.pop(name).cancel()
        return self._running.pop(name, ())

    def _expire(self, name: tuple[str, str]) -> None:
        if taken := self._take(name):
            self._closing = asyncio.ensure_future(_close(taken))


async def _close(requests: Iterable[RunsAhead]) -> None:
    for one in requests:
        await one.close()


def _name(prompt: Prompt) -> tuple[str, str]:
    return prompt.call.request, prompt.call.owner
