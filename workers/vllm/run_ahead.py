"""Requests of vLLM that decode on after their call has ended, for the call that continues the text.

They are not read meanwhile: vLLM gathers what a request makes until its next output is read. Any
other call ends them first, so no live request shares its passes with them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrator.types import Sampling
from workers.backend import Prompt
from workers.vllm.running import Running

SECONDS: Final = 5.0
"""How long a request waits for the call that continues its text."""


class RequestsAhead:
    """The requests of an engine that run ahead, each for one request of ours.

    Args:
        tokens: most that are decoded for no call; 0: none are.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._running: dict[tuple[str, str], Running] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._running)

    def keep(self, prompt: Prompt, running: Running) -> None:
        """Let a request run after its call has ended."""
        name = _name(prompt)
        self._running[name] = running
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(SECONDS, self._expire, name)

    async def adopt(self, prompt: Prompt, sampling: Sampling, thinking: bool) -> Running | None:
        """Take the request that continues a prompt, if there is one; end all others."""
        found = self._take(_name(prompt))
        await self.end()
        if found is None:
            return None
        alike = found.sampling == sampling and found.thinking == thinking
        is_adopted = False
        try:
            if alike and prompt.call.constraint is None:
                is_adopted = await found.leads_to(prompt.ids)
        finally:  # also if the caller leaves meanwhile
            if not is_adopted:
                await found.outputs.aclose()
        return found if is_adopted else None

    async def end(self) -> None:
        """End all of them."""
        while self._running:
            running = self._take(next(iter(self._running)))
            assert running is not None
            await running.outputs.aclose()

    def _take(self, name: tuple[str, str]) -> Running | None:
        if name in self._timers:
            self._timers.pop(name).cancel()
        return self._running.pop(name, None)

    def _expire(self, name: tuple[str, str]) -> None:
        if running := self._take(name):
            self._closing = asyncio.ensure_future(running.outputs.aclose())


def _name(prompt: Prompt) -> tuple[str, str]:
    return prompt.call.request, prompt.call.owner
