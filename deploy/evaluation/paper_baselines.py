"""Papers' claims beside measured rows: what holds on the pair at hand, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from deploy.evaluation.summary import SERVICE, Row
from deploy.service.config import explain
from orchestrator.errors import ConfigError
from orchestrator.worker import SERVER_METHOD

FILE = Path(__file__).parent / "paper_baselines.yaml"
UNITS = {"speedup": "x", "latency_cut": " %", "over_large": " points", "over_small": " points"}


class PaperClaim(BaseModel):
    """One claim: a measure and between which bounds the paper found it.

    Only the lower bound decides: what is better than the paper's best holds too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    says: str
    measure: Literal["speedup", "latency_cut", "over_large", "over_small"]
    speculation: Literal["vanilla", "token-level"] = "vanilla"
    loss: float | None = Field(default=None, ge=0, description="points to large-only, at most")
    low: float = Field(alias="from", allow_inf_nan=False)
    high: float = Field(default=inf, alias="to")

    @model_validator(mode="after")
    def _in_order(self) -> PaperClaim:
        if self.low > self.high:
            raise ValueError("from is above to")
        return self


class PaperBaseline(BaseModel):
    """What is claimed for one policy; `why` explains claims that do not hold here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    claims: tuple[PaperClaim, ...] = Field(min_length=1)
    why: str


class ClaimMeasure(NamedTuple):
    """A value in a claim's unit, and its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """A claim and what was measured, in the claim's unit; None where nothing fits it.

    `kept`: whether it loses no more accuracy than the claim allows; None where too few problems
    were answered to tell.
    """

    claim: PaperClaim
    row: Row | None = None
    found: ClaimMeasure | None = None
    kept: bool | None = True

    @property
    def verdict(self) -> Literal["holds", "fails", "open", "not measured"]:
        """It holds where the whole interval lies inside the paper's range or above, and fails where
        all of it lies below; between, the problems were too few to tell. The same of the loss."""
        if self.found is None:
            return "not measured"
        if self.kept is False or self.found.high < self.claim.low:
            return "fails"
        return "holds" if self.kept and self.found.low >= self.claim.low else "open"

    @property
    def measured(self) -> str:
        """The measured value in words."""
        if self.found is None:
            return "not measured"
        sign = "+" if self.claim.measure.startswith("over") else ""
        value, low, high = (f"{number:{sign}.2f}" for number in self.found)
        return f"{value}{UNITS[self.claim.measure]} [{low}, {high}]"


def load_baselines(path: Path = FILE) -> dict[str, PaperBaseline]:
    """Claims by policy.

    Raises:
        ConfigError: names the key that is wrong.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, PaperBaseline]).validate_python(data)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None


def judge_claim(policy: str, claim: PaperClaim, table: Sequence[Row]) -> ClaimVerdict:
    """The claim against the policy's best row under the claim's own conditions.

    The policy as it stands in the deployment file counts; its variants only where it was not
    measured so, or loses more than the claim allows.
    """
    own = [row for row in table if name_of(row) == policy and _method(row) == claim.speculation]
    kept: bool | None = True
    if claim.loss is not None and own:
        losses = [_keeps(row, claim.loss) for row in own]
        kept = next(one for one in (True, None, False) if one in losses)
        own = [row for row, one in zip(own, losses, strict=True) if one is kept]
    own = [row for row in own if row["policy"] == policy] or own
    own = [row for row in own if row["budget"] is None] or own
    own = [row for row in own if row["transport"] == "in-process"] or own
    values = [(found, row) for row in own if (found := _measured(claim, row)) is not None]
    if not values:
        return ClaimVerdict(claim)
    best, row = max(values, key=lambda pair: pair[0].value)
    return ClaimVerdict(claim, row, best, kept)


def _keeps(row: Row, loss: float) -> bool | None:
    """Whether a row loses so many points of accuracy at most; None where its interval spans that.

    No loss means that the paired 95 % interval lies above minus one point.
    """
    limit = -max(loss, 1.0)
    if 100 * row["difference_low"] > limit - 1e-9:
        return True
    return False if 100 * row["difference_high"] < limit else None


def _measured(claim: PaperClaim, row: Row) -> ClaimMeasure | None:
    """The row in the claim's unit; None where it lacks what that needs."""

    def of(name: str) -> ClaimMeasure:
        return ClaimMeasure(row[name], row[f"{name}_low"], row[f"{name}_high"])

    match claim.measure:
        case "speedup":
            return of("speedup")
        case "latency_cut":
            ratios = of("speedup")
            return ClaimMeasure(*(100 * (1 - 1 / one) for one in ratios)) if all(ratios) else None
        case "over_large":
            return ClaimMeasure(*(100 * one for one in of("difference")))
        case "over_small":
            return ClaimMeasure(*(100 * one for one in of("gain"))) if "gain" in row else None


def name_of(row: Row) -> str:
    """The policy of a row without its parameters."""
    return str(row["policy"]).partition(":")[0]


def _method(row: Row) -> str | None:
    """What the large worker did; None where no claim is about it: unknown, or lossy."""
    speculation = row["speculation"]
    if speculation in (SERVICE, SERVER_METHOD) or "lossy" in speculation:
        return None
    return "vanilla" if speculation == "vanilla" else "token-level"
