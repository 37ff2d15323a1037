"""What a policy's requests have cost lately: how fast both models are now, under today's load.

A request knows its own cost (`Account`) only once it has paid it. This is what the others of the
same process have paid in the last seconds for drafts, judgements and the large model's tokens,
queues and batches included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from time import monotonic

from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import Generate, Write
from orchestrator.loop.events import ActionCompleted, Event
from orchestrator.types import Cost

HALF_LIFE_S = 10.0


class RecentCost:
    """The sum of costs, of which half is forgotten every `half_life_s` seconds."""

    def __init__(
        self, half_life_s: float = HALF_LIFE_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._half_life_s, self._clock = half_life_s, clock
        self._sums, self._at = [0.0] * len(astuple(Cost())), clock()

    def total(self) -> Cost:
        """The sum now."""
        self._fade()
        small_ms, large_ms, judge_ms, *tokens = self._sums
        return Cost(small_ms, large_ms, judge_ms, *map(round, tokens))

    def add(self, cost: Cost) -> None:
        self._fade()
        self._sums = [old + new for old, new in zip(self._sums, astuple(cost), strict=True)]

    def watch(self, response: ResponseAccumulator) -> None:
        """Add what a request costs, as it does.

        Without its prompt, which makes no token, and without what the small model writes for good:
        that is no draft, and nobody judges it.
        """
        told = response.cost()

        def observe(event: Event) -> None:
            nonlocal told
            if isinstance(event, ActionCompleted):
                cost = response.cost()
                match event.action:
                    case Generate(_, _, criteria) if not criteria.max_tokens:
                        pass
                    case Write("small"):
                        pass
                    case _:
                        self.add(cost - told)
                told = cost

        response.observers.append(observe)

    def _fade(self) -> None:
        now = self._clock()
        left = 0.5 ** ((now - self._at) / self._half_life_s)
        self._sums, self._at = [left * one for one in self._sums], now
