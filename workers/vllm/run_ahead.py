"""Requests of vLLM that decode on after their call has ended, for the call that continues the text.

They are not read meanwhile: vLLM gathers what a request makes until its next output is read. Any
other call ends them first, so no live request shares its passes with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from orchestrator.types import Sampling
from workers.backend import Prompt
from workers.vllm.running import Running

SECONDS: Final = 5.0
"""How long a request waits for the call that continues its text."""


class RequestsAhead:
    """The requests that run ahead, at most `tokens` each: one for each text that may continue."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._running: dict[tuple[str, str], Sequence[Running]] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def keep(self, prompt: Prompt, running: Sequence[Running]) -> None:
        """Let requests run after their call has ended."""
        name = _name(prompt)
        self._running[name] = running
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(SECONDS, self._expire, name)

    async def adopt(self, prompt: Prompt, sampling: Sampling, thinking: bool) -> Running | None:
        """Take the request that continues a prompt, if there is one; end all others."""
        mine = self._take(_name(prompt))
        await self.end()
        adopted = None
        try:
            for one in mine:
                alike = one.sampling == sampling and one.thinking == thinking
                if alike and prompt.call.constraint is None and await one.leads_to(prompt.ids):
                    adopted = one
                    break
        finally:  # also if the caller leaves meanwhile
            await _close(one for one in mine if one is not adopted)
        return adopted

    async def end(self) -> None:
        """End all of them."""
        while self._running:
            await _close(self._take(next(iter(self._running))))

    def _take(self, name: tuple[str, str]) -> Sequence[Running]:
        if name in self._timers:
            self._timers.pop(name).cancel()
        return self._running.pop(name, ())

    def _expire(self, name: tuple[str, str]) -> None:
        self._closing = asyncio.ensure_future(_close(self._take(name)))


async def _close(requests: Iterable[Running]) -> None:
    for one in requests:
        await one.close()


def _name(prompt: Prompt) -> tuple[str, str]:
    return prompt.call.request, prompt.call.owner
