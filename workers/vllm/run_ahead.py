"""Requests of vLLM that decode on after their call has ended, for the call that continues the text.

They are not read meanwhile: vLLM gathers what a request makes until its next output is read. Any
other call ends them first, so no live request shares its passes with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from vllm.outputs import RequestOutput

from orchestrator.types import Sampling
from workers.backend import Prompt
from workers.vllm.requests import made_tokens
from workers.vllm.scheduler import Drafts

SECONDS: Final = 5.0
"""How long a request waits for the call that continues its text."""

Output = tuple[RequestOutput, Drafts | None]


class Meter(Protocol):
    """Counts the outputs that a call reads."""

    def record(self, output: RequestOutput, drafts: Drafts | None) -> None:
        """Count one."""
        ...


@dataclass(eq=False, slots=True)
class Running:
    """A request of vLLM's, and what is known of it.

    ids: its prompt, and the tokens that were read. meter: of the call that it decodes for. unread:
    those of the tokens that no call has taken, each with the log-probabilities at its place.
    adopted: whether another call began it.
    """

    ids: list[int]
    sampling: Sampling
    thinking: bool
    outputs: AsyncGenerator[Output, None]
    meter: Meter
    unread: list[tuple[int, Mapping[int, float]]] = field(default_factory=list)
    adopted: bool = False

    async def take(self) -> list[tuple[int, Mapping[int, float]]]:
        """The next tokens; none at the request's end."""
        if not self.unread:
            await self._read()
        taken, self.unread = self.unread, []
        return taken

    async def leads_to(self, ids: list[int]) -> bool:
        """Whether the request continues a prompt; its first unread token then follows that."""
        while len(self.ids) < len(ids) and self.ids == ids[: len(self.ids)]:
            if not await self._read():
                return False
        known = len(self.ids) - len(ids)
        if not 0 <= known <= len(self.unread) or self.ids[: len(ids)] != ids:
            return False
        self.unread = self.unread[len(self.unread) - known :]
        return True

    async def _read(self) -> bool:
        async for output, drafts in self.outputs:
            self.meter.record(output, drafts)
            made = made_tokens(output)
            self.unread += made
            self.ids += [token for token, _ in made]
            return True
        return False


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
        found.adopted = False
        alike = found.sampling == sampling and found.thinking == thinking
        try:
            if alike and prompt.call.constraint is None:
                found.adopted = await found.leads_to(prompt.ids)
        finally:  # also if the caller leaves meanwhile
            if not found.adopted:
                await found.outputs.aclose()
        return found if found.adopted else None

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
