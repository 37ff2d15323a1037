"""Engines in virtual time: rows that share passes, passes that share a device."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deploy.lab.call_costs import DraftRounds, WorkerCosts


class Device:
    """What passes run on. Those of two models at once each go at half their speed."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], float] = {}  # seconds of work, by pass
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, seconds: float) -> None:
        """Run a pass that takes so long alone."""
        done = asyncio.get_running_loop().create_future()
        self._work()
        self._left[done] = seconds
        self._plan()
        await done

    def _work(self) -> None:
        """Give each pass its share of the time since the last change."""
        now = asyncio.get_running_loop().time()
        share = (now - self._since) / max(1, len(self._left))
        self._left = {done: left - share for done, left in self._left.items()}
        self._since = now

    def _plan(self) -> None:
        """Wake up when the first pass is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self._left:
            wait = min(self._left.values()) * len(self._left)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._work()
        for done in [done for done, left in self._left.items() if left < 1e-9]:
            del self._left[done]
            done.set_result(None)
        self._plan()


@dataclass(eq=False)
class VirtualRow:
    """A sequence of an engine: tokens that it has yet to read, and tokens that it has made.

    Rounds of speculation make a number of tokens that is whole only on average.
    """

    unread: int
    wanted: int
    made: float = 0.0
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> bool:
        return self.made < self.wanted - 1e-9

    def grow(self, tokens: float) -> None:
        """Take the tokens of a pass; the pass that reads gives one."""
        self.made += 1 if self.unread else tokens
        self.unread = 0
        if not self.live:
            self.finished.set()


class VirtualEngine:
    """A model that batches continuously: each pass reads what new rows bring, and gives every row
    a token. A row that comes in the middle of a pass joins the next.

    With a `draft` model a pass verifies what that model drafted before it.
    """

    def __init__(
        self,
        costs: WorkerCosts,
        device: Device,
        draft: tuple[WorkerCosts, DraftRounds] | None = None,
    ) -> None:
        self.costs, self._device, self._draft = costs, device, draft
        self._rows: list[VirtualRow] = []
        self._tail = 0  # passes in flight that no row needs
        self._running: asyncio.Task[None] | None = None

    async def run(self, unread: int, tokens: int, aborted: bool = False) -> None:
        """Read and write numbers of tokens; `aborted`: Baton ends the text, not the engine."""
        row = VirtualRow(unread, max(1, tokens))
        self._rows.append(row)
        self._wake()
        await row.finished.wait()
        self._rows.remove(row)
        if aborted and not any(one.live for one in self._rows):
            self._tail = self.costs.abort_passes
            self._wake()

    def _wake(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._passes())

    async def _passes(self) -> None:
        while True:
            if self._tail:
                tail, self._tail = self._tail, 0
                await self._device.run(tail * self.costs.pass_ms(1) / 1000)
            elif batch := [row for row in self._rows if row.live]:
                await self._device.run(self._pass_ms(batch) / 1000)
                for row in batch:
                    row.grow(1 if self._draft is None else self._draft[1].tokens_a_round)
            else:
                return

    def _pass_ms(self, batch: list[VirtualRow]) -> float:
        ms = self.costs.pass_ms(len(batch), sum(row.unread for row in batch))
        writing = sum(not row.unread for row in batch)
        if self._draft is not None and writing:
            model, rounds = self._draft
            ms += rounds.drafts * model.pass_ms(writing)
        return ms
