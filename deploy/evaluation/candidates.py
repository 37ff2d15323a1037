"""Candidates of an evaluation: policies with parameters, under a label."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from deploy.service.config import Args, explain
from orchestrator.errors import InvalidRequest, UnknownPolicy
from orchestrator.loop.policy import Policy
from orchestrator.state.versions import build
from policies import POLICIES

BASELINE: Final = "large-only"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with parameters that runs under its label, such as `specreason:threshold=5`."""

    label: str
    policy: str
    params: dict[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Parse `NAME` or `NAME:KEY=VALUE:KEY=VALUE`; values are JSON, or else strings.

        Raises:
            InvalidRequest: a parameter without `=`.
        """
        # A value may have colons, as in JSON, so the next parameter begins with a name and "=".
        name, *pairs = re.split(r":(?=\w+=)", text.strip())
        if ":" in name:
            raise InvalidRequest(f"{text}: write parameters as NAME:KEY=VALUE", param="policy")
        params: dict[str, Any] = {}
        for pair in pairs:
            key, _, value = pair.partition("=")
            try:
                params[key] = json.loads(value)
            except ValueError:
                params[key] = value
        return cls(text.strip(), name, params)

    @property
    def budget(self) -> int | None:
        budget: int | None = self.params.get("budget")
        return budget

    def within(self, budget: int | None) -> Candidate:
        """Return the candidate with a cap on thinking tokens, unless it has one."""
        if budget is None or "budget" in self.params:
            return self
        return replace(self, params={**self.params, "budget": budget})


def lineup(policies: Iterable[str], budgets: Sequence[int | None]) -> list[Candidate]:
    """Return every policy at every budget, the baseline among them, none twice."""
    parsed = [Candidate.parse(text) for text in policies if text.strip()]
    if not any(candidate == Candidate(BASELINE, BASELINE) for candidate in parsed):
        parsed.insert(0, Candidate(BASELINE, BASELINE))
    candidates: list[Candidate] = []
    for candidate in (one.within(budget) for budget in budgets for one in parsed):
        if candidate not in candidates:
            candidates.append(candidate)
    return candidates


def policy_of(args: Args, candidate: Candidate) -> Policy:
    """Return the policy with the file's parameters, and the candidate's own over them.

    Raises:
        UnknownPolicy, InvalidRequest: names what is wrong.
    """
    name = policy_name(args, candidate)
    return build_policy(name, {**args.policy.params.get(name, {}), **candidate.params})


def policy_name(args: Args, candidate: Candidate) -> str:
    """Return the candidate's policy in `POLICIES`: the model `baton` is the file's default."""
    return args.policy.default if candidate.policy == "baton" else candidate.policy


def build_policy(name: str, params: Mapping[str, Any]) -> Policy:
    """Return a policy by its name and parameters.

    Raises:
        UnknownPolicy, InvalidRequest: names what is wrong.
    """
    if name not in POLICIES:
        raise UnknownPolicy(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    try:
        return build(POLICIES, name, params)
    except ValidationError as error:
        raise InvalidRequest(f"{name}: {explain(error, POLICIES[name])}", param="policy") from None
