"""Papers' claims beside measured rows: what holds on the pair at hand, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from deploy.evaluation.summary import SERVICE, Row
from deploy.service.config import explain
from orchestrator.errors import ConfigError
from orchestrator.worker import SERVER_METHOD

FILE = Path(__file__).parent / "paper_baselines.yaml"
SMALL = "small-only"
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


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """A claim and what was measured: `value` in the claim's unit, None where nothing fits it.

    `lossy`: all that was measured loses more accuracy than the claim allows.
    """

    claim: PaperClaim
    row: Row | None = None
    value: float | None = None
    lossy: bool = False

    @property
    def holds(self) -> bool | None:
        return None if self.value is None else self.value >= self.claim.low and not self.lossy

    @property
    def measured(self) -> str:
        """The measured value in words."""
        if self.value is None:
            return "not measured"
        sign = "+" if self.claim.measure.startswith("over") else ""
        return f"{self.value:{sign}.2f}{UNITS[self.claim.measure]}"


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
    lossy = False
    if claim.loss is not None:
        within = [row for row in own if _within(row, claim.loss)]
        own, lossy = within or own, not within
    own = [row for row in own if row["policy"] == policy] or own
    own = [row for row in own if row["budget"] is None] or own
    own = [row for row in own if row["transport"] == "in-process"] or own
    values = [(value, row) for row in own if (value := _value(claim, row, table)) is not None]
    if not values:
        return ClaimVerdict(claim)
    value, row = max(values, key=lambda pair: pair[0])
    return ClaimVerdict(claim, row, value, lossy)


def _within(row: Row, loss: float) -> bool:
    """Whether a row loses so many points of accuracy at most.

    None lost means that the lower end of the paired 95 % interval is above minus one point.
    """
    if loss == 0:
        return bool(100 * row["difference_low"] > -1)
    return bool(100 * row["difference"] >= -loss - 1e-9)


def _value(claim: PaperClaim, row: Row, table: Sequence[Row]) -> float | None:
    match claim.measure:
        case "speedup":
            return float(row["speedup"])
        case "latency_cut":
            return 100 * (1 - 1 / row["speedup"]) if row["speedup"] else None
        case "over_large":
            return float(100 * row["difference"])
        case "over_small":
            conditions = ("budget", "speculation", "transport", "n")
            for other in table:
                if other["policy"] == SMALL and all(other[k] == row[k] for k in conditions):
                    return float(100 * (row["accuracy"] - other["accuracy"]))
    return None


def name_of(row: Row) -> str:
    """The policy of a row without its parameters."""
    return str(row["policy"]).partition(":")[0]


def _method(row: Row) -> str | None:
    """What the large worker did; None where no claim is about it: unknown, or lossy."""
    speculation = row["speculation"]
    if speculation in (SERVICE, SERVER_METHOD) or "lossy" in speculation:
        return None
    return "vanilla" if speculation == "vanilla" else "token-level"
