"""The caps on the large model in a thought: a policy's `max_large_tokens` and `max_cost`.

They apply to every policy, and no policy knows of them. The large model's text is cut to the tokens
that are left. After that it is no longer called: its drafts and judgements fail as if the worker
were down, which policies work around, and the small model writes in its place, to the end of the
chain. The policy decides again on the answer that follows a thought.

Tokens count when they are made, even in rejected drafts: the cap is never exceeded. The cost is
that of all calls of both models; the small model and the answer add to it after the cap. All of it
follows from results, so a replay spends the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from orchestrator.errors import InvalidRequest, Spent
from orchestrator.loop.actions import REST, Action, Advise, Classify, Generate, Verify, Write
from orchestrator.loop.events import Metrics
from orchestrator.loop.policy import Policy
from orchestrator.types import Limits, TokenPrices

LEAST_LEFT = 4
"""The fewest tokens that a call may be limited to: they hold at least one whole character."""


@dataclass(frozen=True, slots=True)
class Spending:
    """The caps of one request: tokens of the large model, and money at these prices."""

    tokens: float = inf
    cost: float = inf
    prices: TokenPrices | None = None

    @classmethod
    def of(cls, policy: Policy, limits: Limits) -> Spending:
        """Return the caps of a policy.

        Raises:
            InvalidRequest: as `check_priced`.
        """
        check_priced(policy, limits.prices is not None, "policy")
        tokens = inf if policy.max_large_tokens is None else policy.max_large_tokens
        if policy.max_cost is None:
            return cls(tokens)
        return cls(tokens, policy.max_cost, limits.prices)

    @property
    def capped(self) -> bool:
        return self.tokens < inf or self.cost < inf

    def left(self, totals: Metrics) -> float:
        """Return the tokens that the large model may still make, after these totals."""
        left = self.tokens - totals.large_tokens
        if self.prices is None:
            return left
        spent = totals.small_tokens, totals.large_tokens, totals.prefill_tokens
        money = self.cost - self.prices.of(*spent)
        affordable = money * 1e6 / self.prices.large if self.prices.large else inf
        return min(left, affordable + 1e-6) if money > 0 else 0  # no token is lost to rounding

    def allow(self, action: Action[Any], left: float) -> Action[Any]:
        """Return an action in the chain, limited to `left` tokens of the large model.

        Raises:
            Spent: it calls the large model, and less than `LEAST_LEFT` is left.
        """
        if left == inf or not isinstance(action, Generate | Write | Classify | Verify):
            return action
        if action.worker != "large":
            return action
        if left < LEAST_LEFT:
            if isinstance(action, Write) and not isinstance(action, Advise):
                return Write("small", action.transcript, REST)
            raise Spent("what this request may spend on the large model is spent")
        if isinstance(action, Classify | Verify) or action.criteria.max_tokens <= left:
            return action
        return replace(action, criteria=replace(action.criteria, max_tokens=int(left)))


def check_priced(policy: Policy, priced: bool, place: str) -> None:
    """Refuse a policy at `place` that caps the cost, unless the service names prices.

    Raises:
        InvalidRequest: names `max_cost`.
    """
    if policy.max_cost is not None and not priced:
        raise InvalidRequest(
            f"{place}.max_cost: this service names no prices; give max_large_tokens instead, "
            "or `prices` in the deployment file",
            param=f"{place}.max_cost",
        )
