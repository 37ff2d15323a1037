"""A request of vLLM's while it runs, and what a call costs in requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from vllm.outputs import RequestOutput

from orchestrator.types import Provenance, Sampling, Usage
from workers.text.continuation import Continuation
from workers.vllm.requests import made_tokens


class Cost:
    """What one call costs, over all its requests.

    What was cached is what its first request found: later look-ups find what that has read. A call
    may adopt its first request; `found` are the tokens that were made before it came. vLLM counts
    the drafts of a request in its last output.
    """

    def __init__(self, prompt: int, owner: str = "") -> None:
        self.prompt, self.cached, self.generated, self.passes = prompt, 0, 0, 0
        self.owner, self.adopts, self.found = owner, False, 0
        self._places, self._drafted, self._accepted = 0, list[int](), list[int]()

    def record(self, output: RequestOutput) -> None:
        """Count an output."""
        (made,) = output.outputs
        if not (self.passes or self.adopts):
            self.cached = output.num_cached_tokens or 0
        self.generated += len(made.token_ids)
        self.passes += 1
        if (drafts := made.spec_decode_metrics) is not None:
            self._places = drafts.num_spec_tokens
            self._drafted += drafts.per_step_drafted
            self._accepted += drafts.per_step_accepted

    def usage(self) -> Usage:
        return Usage(self.prompt, self.cached, self.generated, self.passes)

    def provenance(self, text: Continuation) -> Provenance | None:
        """Return that of the call's text, if something was drafted for it."""
        if not self._drafted:
            return None
        return text.counted(self._at_places(self._drafted), self._at_places(self._accepted))

    def _at_places(self, lengths: Sequence[int]) -> list[int]:
        """Return how many of the lengths reach each place of a draft."""
        return [sum(place < length for length in lengths) for place in range(self._places)]


@dataclass(eq=False, slots=True)
class Running:
    """A request of vLLM's, and what is known of it.

    Attributes:
        ids: its prompt, and the tokens that were read.
        form: see `workers.run_ahead.RunsAhead`.
        cost: of the call that it decodes for.
        may_fall_short: whether it may end before its text does.
        unread: those of the tokens that no call has taken, each with the log-probabilities at its
            place.
        finished: whether it has ended by itself.
    """

    ids: list[int]
    form: tuple[Sampling, bool]
    outputs: AsyncGenerator[RequestOutput, None]
    cost: Cost
    may_fall_short: bool = False
    unread: list[tuple[int, Mapping[int, float]]] = field(default_factory=list)
    finished: bool = False
    _is_new: bool = False
    _next: asyncio.Task[RequestOutput] | None = None

    def begin(self) -> None:
        """Send the request to vLLM now, not when its first output is read."""
        self._next = asyncio.ensure_future(anext(self.outputs))

    async def close(self) -> None:
        """End the request."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
            with suppress(asyncio.CancelledError, Exception):  # no call waits for it
                self._next.result()
        await self.outputs.aclose()

    def adopt(self, cost: Cost) -> None:
        """Continue for another call."""
        cost.adopts, cost.cached, cost.found = True, cost.prompt, len(self.unread)
        self.cost = cost
        self._is_new = self.may_fall_short = True

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
        """Read the next output; vLLM gathers in one what was made since the last was read."""
        waited: list[bool] = []
        asyncio.get_running_loop().call_soon(waited.append, True)
        reading, self._next = self._next or anext(self.outputs), None
        try:
            output = await reading
        except StopAsyncIteration:
            return False
        self.cost.record(output)
        made = made_tokens(output)
        self.unread += made
        self.ids += [token for token, _ in made]
        self._is_new = self._is_new and not waited
        if self._is_new:
            self.cost.found += len(made)
        self.finished = output.finished
        return True
