"""A worker that reads the prompt when a test lets it."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.types import StopCriteria
from tests.workers.scripted import Scripted


class HeldReader(Scripted):
    """A worker that reads the prompt once it is `let`; `early` counts the calls before."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.let, self.early = asyncio.Event(), 0

    async def generate(self, call: Any, criteria: StopCriteria, *args: Any, **kw: Any) -> Any:
        if criteria.max_tokens == 0:
            await self.let.wait()
        self.early += not self.let.is_set()
        async for item in super().generate(call, criteria, *args, **kw):
            yield item

    async def classify(self, *args: Any, **kw: Any) -> Any:
        self.early += not self.let.is_set()
        return await super().classify(*args, **kw)
