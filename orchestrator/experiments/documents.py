"""Experiments as documents: arms, units, goal, guardrails, ramp.

A document never changes while its experiment runs. `ExperimentState` holds what changes: the step
of the ramp, and the arms that were stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from orchestrator.errors import InvalidRequest
from orchestrator.types import TokenPrices
from orchestrator.validation import invalid_request

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Share = Annotated[float, Field(ge=0, le=1)]
KeyDigits = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
Unit = Literal["key", "user", "session", "request"]
MetricName = Literal[
    "ms",
    "first_step_ms",
    "small_tokens",
    "large_tokens",
    "large_share",
    "cost",
    "accepted",
    "agreement",
    "reward",
    "error",
    "cancelled",
]


class ExperimentDocument(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Parse a document from JSON values, strictly: 1 is a float and "1" is not.

        Raises:
            InvalidRequest: an unknown key, a wrong value or a contradiction, by name.
        """
        try:
            return cls.model_validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            raise invalid_request(error, model=cls) from None


class Arm(ExperimentDocument):
    """One way to answer: a policy (or a published version of it) with parameters.

    `weight` is its share of the units that take part; without any weights, arms get equal shares.
    A `shadow` arm answers the control's requests again, for comparison only.
    `speculation` is a method of the large worker.
    """

    name: Name
    policy: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    params: dict[str, Any] = Field(default_factory=dict)
    speculation: str | None = None
    weight: Annotated[float, Field(gt=0, le=1)] | None = None
    shadow: bool = False


class ExclusionGroup(ExperimentDocument):
    """Experiments of one group exclude each other: each takes a part [start, end) of the units."""

    name: Name
    start: Share = 0.0
    end: Share = 1.0


class Bound(ExperimentDocument):
    """A bound of the goal: `metric` may be worse than the control's by `by`, in its unit."""

    metric: MetricName
    by: Annotated[float, Field(ge=0)]


class Goal(ExperimentDocument):
    """The metric that arms are compared by, within bounds of others.

    `detect` is the relative difference for which the report plans the sample size.
    """

    metric: MetricName = "reward"
    within: tuple[Bound, ...] = ()
    detect: Annotated[float, Field(gt=0, le=1)] = 0.05


class Guardrail(ExperimentDocument):
    """A limit that stops an arm once the arm has surely crossed it.

    It has one of `at_most`, `at_least` and `worse_than_control_by`, in the metric's unit. With a
    `quantile` (of a time), `at_most` limits that quantile. `alpha` bounds the probability that an
    arm within the limit is ever stopped, by the times that were observed (`guardrails.py`).
    """

    metric: MetricName
    at_most: float | None = None
    at_least: float | None = None
    worse_than_control_by: Annotated[float, Field(ge=0)] | None = None
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    min_units: Annotated[int, Field(ge=1)] = 20

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        limits = (self.at_most, self.at_least, self.worse_than_control_by)
        if sum(limit is not None for limit in limits) != 1:
            raise _invalid(
                "guardrails", "name one of at_most, at_least and worse_than_control_by", self.metric
            )
        if self.quantile is not None and (
            self.metric not in ("ms", "first_step_ms") or self.at_most is None
        ):
            raise _invalid("guardrails", "a quantile goes with a time and at_most", self.metric)
        return self

    def __str__(self) -> str:
        what: str = self.metric
        if self.quantile is not None:
            what = f"p{self.quantile * 100:g} of {what}"
        if self.at_most is not None:
            return f"{what} at most {self.at_most:g}"
        if self.at_least is not None:
            return f"{what} at least {self.at_least:g}"
        return f"{what} worse than the control by at most {self.worse_than_control_by:g}"


class Ramp(ExperimentDocument):
    """Coverage in steps: the next one after `hold_s` seconds and `units` exposed units per arm."""

    steps: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (
        0.01,
        0.05,
        0.25,
        1.0,
    )
    hold_s: Annotated[float, Field(ge=0)] = 3600.0
    units: Annotated[int, Field(ge=0)] = 100  # per arm

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if list(self.steps) != sorted(set(self.steps)):
            raise _invalid("ramp.steps", "must rise, or units would move between arms")
        return self


class Experiment(ExperimentDocument):
    """One experiment: its arms answer the requests for the model `baton` that take part.

    `coverage` is the share of units that take part. `secret` seeds the hash of units, so that two
    experiments assign them independently, and users cannot compute arms; the first start makes it,
    and later starts keep it. `alpha` is the false positive rate on one metric over all arms, at any
    number of looks. `judges` are the keys whose rewards count, by the eight digits that name them
    in logs and records.
    """

    name: Name
    arms: Annotated[tuple[Arm, ...], Field(min_length=1, max_length=32)]
    control: Name | None = None
    unit: Unit = "request"
    coverage: Share = 1.0
    secret: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")] | None = None
    group: ExclusionGroup | None = None
    goal: Goal = Goal()
    guardrails: Annotated[tuple[Guardrail, ...], Field(max_length=32)] = ()
    ramp: Ramp | None = None
    judges: Literal["all"] | Annotated[tuple[KeyDigits, ...], Field(min_length=1)] | None = None
    prices: TokenPrices = TokenPrices()
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    min_units: Annotated[int, Field(ge=2)] = 100  # per arm, before anything is concluded
    note: Annotated[str, StringConstraints(max_length=1000)] = ""
    author: Annotated[str, StringConstraints(max_length=128)] = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise _invalid("arms", "two arms have this name", twice[0])
        served = [arm.name for arm in self.served]
        if len(names) < 2 or not served:
            raise _invalid("arms", "an experiment needs two arms, one of them no shadow")
        if self.base not in served:
            raise _invalid("control", "no arm that is served has this name", self.base)
        if self.group is not None and self.group.start >= self.group.end:
            raise _invalid("group", "start must be below end")
        for arm in self.shadows:
            if arm.weight is not None:
                raise _invalid("arms", "a shadow is never returned: it has no weight", arm.name)
        given = [arm.weight for arm in self.served if arm.weight is not None]
        if given and len(given) < len(self.served):
            raise _invalid("arms", "give every arm a weight, or none")
        if given and abs(sum(given) - 1) > 1e-9:
            raise _invalid("arms", f"the weights add up to {sum(given):g} instead of 1")
        return self

    def check_decidable(self) -> None:
        """Refuse a goal, bound or guardrail whose metric the requests do not have."""
        decisive = [
            ("goal", self.goal.metric),
            *(("goal.within", one.metric) for one in self.goal.within),
            *(("guardrails", one.metric) for one in self.guardrails),
        ]
        for place, metric in decisive:
            if metric == "cost" and self.prices.all_free:
                raise _invalid(place, "cost needs the experiment's prices: give one above 0")
            if metric == "agreement" and not (place == "goal" and self.shadows):
                raise _invalid(place, "only shadows have agreement: name a metric of served arms")
            if metric == "agreement" and len(self.served) > 1:
                raise _invalid(
                    "arms",
                    "expected one served arm beside shadows, since no other arm "
                    "has the goal's agreement; serve one, or name another goal",
                )

    @property
    def served(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if not arm.shadow)

    @property
    def shadows(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.shadow)

    @property
    def base(self) -> str:
        """The name of the control, by default the first served arm."""
        return self.control or next((arm.name for arm in self.served), "")

    @property
    def adaptive(self) -> bool:
        """Whether its log may change its state while it runs (guardrails, a ramp)."""
        return bool(self.guardrails) or self.ramp is not None

    @property
    def acts_on_rewards(self) -> bool:
        """Whether rewards alone may stop one of its arms."""
        return any(rail.metric == "reward" for rail in self.guardrails)

    def counts_rewards_of(self, judge: str | None) -> bool:
        """Return whether the rewards of a key count (8 digits of its digest, None without keys)."""
        return not isinstance(self.judges, tuple) or judge in self.judges

    @property
    def seed(self) -> str:
        return self.secret or self.name

    @property
    def weights(self) -> dict[str, float]:
        """Each served arm's share of the units that take part."""
        return {arm.name: arm.weight or 1 / len(self.served) for arm in self.served}

    def excludes(self, other: Experiment) -> bool:
        """Return whether no unit can take part in both."""
        a, b = self.group, other.group
        if a is None or b is None or a.name != b.name or self.unit != other.unit:
            return False
        return a.end <= b.start or b.end <= a.start


class StoppedArm(ExperimentDocument):
    """When an arm was stopped (seconds since 1970), and why."""

    at: float
    why: str


class ExperimentState(ExperimentDocument):
    """What changes while an experiment runs; times in seconds since 1970."""

    started: float
    ended: float | None = None
    step: Annotated[int, Field(ge=0)] = 0
    step_since: float
    stopped: dict[str, StoppedArm] = Field(default_factory=dict)

    def coverage(self, experiment: Experiment) -> float:
        """Return the share of units that take part now."""
        steps = (1.0,) if experiment.ramp is None else experiment.ramp.steps
        return experiment.coverage * steps[min(self.step, len(steps) - 1)]


def initial_state(at: float) -> ExperimentState:
    return ExperimentState(started=at, step_since=at)


def _invalid(place: str, message: str, which: str | None = None) -> InvalidRequest:
    text = f"{place}: {message}" if which is None else f"{place}: {which[:64]}: {message}"
    return InvalidRequest(text, param=place, code="invalid_value")
