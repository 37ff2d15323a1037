"""Engines in virtual time: rows that share passes, passes that share a device."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deploy.lab.call_costs import DraftRounds, WorkerCosts


class Device:
    """What passes run on. Those of two models at once each go at half their speed.

    A low pass continues only while there is no other.
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], float] = {}  # seconds of work, by pass
        self._low: set[asyncio.Future[None]] = set()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, seconds: float, low: bool = False) -> None:
        """Run a pass that takes so long alone."""
        done = asyncio.get_running_loop().create_future()
        self._work()
        self._left[done] = seconds
        if low:
            self._low.add(done)
        self._plan()
        await done

    def promote(self) -> None:
        """Let low passes continue as others do: a call waits for them now."""
        if self._low:
            self._work()
            self._low.clear()
            self._plan()

    def _going(self) -> list[asyncio.Future[None]]:
        return [done for done in self._left if done not in self._low] or [*self._left]

    def _work(self) -> None:
        """Give each pass its share of the time since the last change."""
        now = asyncio.get_running_loop().time()
        going = self._going()
        for done in going:
            self._left[done] -= (now - self._since) / len(going)
        self._since = now

    def _plan(self) -> None:
        """Wake up when the first pass is over."""
        if self._timer is not None:
            self._timer.cancel()
        if going := self._going():
            wait = min(self._left[done] for done in going) * len(going)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._work()
        for done in [done for done, left in self._left.items() if left < 1e-9]:
            del self._left[done]
            self._low.discard(done)
            done.set_result(None)
        self._plan()


@dataclass(eq=False)
class VirtualRow:
    """A sequence of an engine: tokens that it has yet to read, and tokens that it has made.

    Rounds of speculation make a number of tokens that is whole only on average. Behind the tokens
    that are wanted it may run ahead by `ahead`, as `width` rows.
    """

    unread: int
    wanted: int = 0
    made: float = 0.0
    ahead: int = 0
    width: int = 1
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> bool:
        return self.made < self.wanted - 1e-9

    @property
    def runs_ahead(self) -> bool:
        return self.wanted <= self.made + 1e-9 < self.wanted + self.ahead

    def grow(self, tokens: float) -> None:
        """Take the tokens of a pass; the pass that reads gives one."""
        self.made += 1 if self.unread else tokens
        self.unread = 0
        if not self.live:
            self.finished.set()


class VirtualEngine:
    """A model that batches continuously: each pass reads what new rows bring, and gives every row
    a token. A row that comes in the middle of a pass joins the next.

    With a `draft` model a pass verifies what that model drafted before it. Rows that run ahead come
    last: they take places that are free, and a pass for them alone lets the other model pass.
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
        self._low = False  # whether a pass runs that no call waits for
        self._running: asyncio.Task[None] | None = None

    def begin(self, unread: int) -> VirtualRow:
        """Add a row."""
        row = VirtualRow(unread)
        self._rows.append(row)
        return row

    async def write(self, row: VirtualRow, tokens: int) -> None:
        """Make that many tokens more; those that the row ran ahead count."""
        row.wanted, row.ahead, row.width = row.wanted + tokens, 0, 1
        row.finished.clear()
        if row.live:
            if self._low:
                self._device.promote()
            self._wake()
            await row.finished.wait()

    def run_ahead(self, row: VirtualRow, tokens: int, width: int) -> None:
        """Let a row make up to that many tokens for a call that may come."""
        row.ahead, row.width = tokens, width
        self._wake()

    def end(self, row: VirtualRow, aborted: bool = False) -> None:
        """Drop a row; `aborted`: Baton ends the text, not the engine."""
        self._rows.remove(row)
        if aborted and not any(one.live for one in self._rows):
            self._tail = self.costs.abort_passes
            self._wake()

    def _wake(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._passes())

    async def _passes(self) -> None:
        while True:
            live = [row for row in self._rows if row.live]
            free = self.costs.most - len(live)
            if self._tail:
                tail, self._tail = self._tail, 0
                await self._device.run(tail * self.costs.pass_ms(1) / 1000)
                continue
            batch = live[: self.costs.most]
            for row in self._rows:
                if row.runs_ahead and row.width <= free:
                    batch.append(row)
                    free -= row.width
            if not batch:
                return
            self._low = not live
            await self._device.run(self._pass_ms(batch) / 1000, self._low)
            self._low = False
            for row in batch:
                row.grow(1 if self._draft is None else self._draft[1].tokens_a_round)

    def _pass_ms(self, batch: list[VirtualRow]) -> float:
        rows = sum(row.width for row in batch)
        ms = self.costs.pass_ms(rows, sum(row.unread for row in batch))
        writing = sum(not row.unread for row in batch)
        if self._draft is not None and writing:
            model, rounds = self._draft
            ms += rounds.drafts * model.pass_ms(writing)
        return ms
