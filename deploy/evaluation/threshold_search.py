"""The value of a policy's threshold that meets a target, found by bisection.

A target is a share of tokens by the large model, agreement with the answers of the large model
alone, or accuracy, if the right answers are known.

The policy's class names the parameter (`Policy.calibrated`), whose field has the bounds. Both ends
are measured first, so the parameter may work in either direction. In between, the search assumes
that more of the large model gives no less accuracy. A sample obeys this only roughly, so every
value that was tried is reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError

from deploy.service.config import explain
from orchestrator.errors import InvalidRequest
from orchestrator.loop.policy import Policy

ROUNDS = 16
"""The most halvings of the range: a threshold from 0 to 10 is found to 0.0002, since all scores of
a judge may be between 8.9 and 9."""
DIGITS = 4  # decimals of a value
INSET = 2**-10
"""The distance of the lowest and highest value from a bound that is excluded, by the range."""
NEAR = 0.02
"""The search ends once the share of large tokens is this close to the best possible: no sample of
questions separates closer values."""

Measure = Literal["large_share", "agreement", "accuracy"]


@dataclass(frozen=True, slots=True)
class CalibrationTarget:
    """A target: a large-token share of at most `value`, or at least `value` of the others."""

    measure: Measure
    value: float

    def met_by(self, point: Point) -> bool:
        reached: float | None = getattr(point, self.measure)
        if self.measure == "large_share":
            return point.large_share <= self.value
        return reached is not None and reached >= self.value


@dataclass(frozen=True, slots=True)
class Point:
    """The results of one value of the parameter on the problems, as fractions of 1.

    `large_share`: tokens that the large model generated, discarded or not, over those that it
    generates alone. `agreement`: answers that equal those of the large model alone. `accuracy`:
    None if no question has an answer.
    """

    value: float
    large_share: float
    agreement: float
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """The parameter that is calibrated, and the bounds of its value."""

    parameter: str
    low: float
    high: float
    whole: bool = False  # only whole numbers make sense

    @classmethod
    def of(
        cls,
        policy: type[Policy],
        parameter: str | None = None,
        bounds: tuple[float, float] | None = None,
        params: Mapping[str, Any] = MappingProxyType({}),
    ) -> Range:
        """Return the policy's own choice, unless a parameter or bounds are given.

        `params` are the policy's other parameters, with which both bounds must be valid.

        Raises:
            InvalidRequest: names what is missing or wrong.
        """
        name = parameter or policy.calibrated
        if name is None:
            raise InvalidRequest(
                f"{policy.__name__} names no threshold; choose one with --parameter",
                param="parameter",
            )
        properties = policy.model_json_schema()["properties"]
        numbers = {key: found for key, one in properties.items() if (found := _number(one))}
        if name not in numbers:
            raise InvalidRequest(
                f"no number {name!r} to calibrate; there are {', '.join(numbers) or 'none'}",
                param="parameter",
            )
        limits = numbers[name]
        low = limits.get("minimum", limits.get("exclusiveMinimum"))
        high = limits.get("maximum", limits.get("exclusiveMaximum"))
        if bounds is not None:
            low, high = (round(bound, DIGITS) for bound in bounds)
        if low is None or high is None or not (isfinite(low) and isfinite(high) and low < high):
            raise InvalidRequest(
                f"{name} needs a range to search: give --range LOW,HIGH", param="range"
            )
        if bounds is None:  # a bound that the field excludes cannot be tried
            inset = (high - low) * INSET
            low = round(low + inset * ("exclusiveMinimum" in limits), DIGITS)
            high = round(high - inset * ("exclusiveMaximum" in limits), DIGITS)
        for bound in (low, high):
            try:
                policy.model_validate({**params, name: bound})
            except ValidationError as error:
                raise InvalidRequest(
                    f"--range: {name} cannot be {bound:g}: {explain(error)}", param="range"
                ) from None
        return cls(name, low, high, limits["type"] == "integer")

    def middle(self, a: float, b: float) -> float | None:
        """Return a value between two others; None if there is none left to try."""
        if self.whole:
            between, near = float(round((a + b) / 2)), False
        else:
            between = round((a + b) / 2, DIGITS)
            near = abs(a - b) <= (self.high - self.low) / 2**ROUNDS
        return None if near or between in (a, b) else between


def _number(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a field's number if it is one, or may be one (`float | None`)."""
    options = [dict(one) for one in schema.get("anyOf", [schema])]
    numbers = [one for one in options if one.get("type") in ("number", "integer")]
    return numbers[0] if len(numbers) == 1 else None


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The best value that meets the target, or the nearest miss; and every value tried."""

    best: Point
    met: bool
    tried: tuple[Point, ...]


async def search(
    measure: Callable[[float], Awaitable[Point]], where: Range, target: CalibrationTarget
) -> CalibrationResult:
    """Bisect between the end that meets the target and the preferred end.

    The preferred end has more of the large model (quality) if the target is its share, and less
    (cost) for agreement and accuracy. The result is the value nearest to it, up to `NEAR`, that
    meets the target.
    """
    tried = [await measure(where.low), await measure(where.high)]
    cheap, rich = sorted(tried, key=lambda point: (point.large_share, point.agreement))
    safe, wanted = (cheap, rich) if target.measure == "large_share" else (rich, cheap)
    if target.met_by(wanted) or not target.met_by(safe):
        best = wanted if target.met_by(wanted) else safe
        return CalibrationResult(best, target.met_by(best), tuple(tried))
    while (value := where.middle(safe.value, wanted.value)) is not None:
        limit = target.value if target.measure == "large_share" else wanted.large_share
        if abs(limit - safe.large_share) <= NEAR:
            break
        point = await measure(value)
        tried.append(point)
        safe, wanted = (point, wanted) if target.met_by(point) else (safe, point)
    return CalibrationResult(safe, True, tuple(sorted(tried, key=lambda point: point.value)))
