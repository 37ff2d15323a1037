"""What calls to a pair of models cost on stated hardware (`costs/*.yaml`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deploy.service.config import explain
from orchestrator.errors import ConfigError

HERE: Final = Path(__file__).parent / "costs"
TokenTime: TypeAlias = Annotated[float, Field(gt=0)]
Streams: TypeAlias = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerCosts(_Strict):
    """What one model costs, in milliseconds.

    `token_ms` is the time between two tokens of a stream by how many are live; a file may give one
    number, which is for one stream.
    """

    model: str
    call_ms: float = Field(ge=0, description="what a call takes beside its passes")
    read_ms: float = Field(ge=0, description="the least that a pass takes that reads")
    read_token_ms: float = Field(ge=0, description="more for every token that it reads")
    graph_tokens: int = Field(
        default=0, ge=0, description="a pass of up to this many tokens costs nothing for reading"
    )
    no_graph_ms: float = Field(default=0.0, ge=0, description="more for a pass of more tokens")
    verify_ms: float = Field(default=0.0, ge=0, description="more for a call that verifies")
    abort_passes: int = Field(
        default=0, ge=0, description="passes that run on when Baton ends a text before its cap"
    )
    token_ms: dict[Streams, TokenTime] = Field(
        min_length=1, description="a pass that gives each stream a token, by live streams"
    )

    @field_validator("token_ms", mode="before")
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        if not isinstance(value, int | float):
            return value
        if not value > 0:
            raise ValueError(f"want milliseconds above 0, not {value:g}")
        return {1: value}

    @property
    def most(self) -> int:
        """The most live streams that there is a figure for."""
        return max(self.token_ms)

    def token_ms_at(self, streams: int) -> float:
        """Milliseconds of a pass with this many live streams, at most `most`: on the line between
        two figures, and below the fewest streams what those take."""
        known = sorted(self.token_ms)
        return float(np.interp(streams, known, [self.token_ms[count] for count in known]))

    def pass_ms(self, streams: int, new: int = 0) -> float:
        """Milliseconds of a pass with this many live streams that reads `new` tokens."""
        ms = self.token_ms_at(streams)
        if not new:
            return ms
        ms = max(ms, self.read_ms)
        if new + streams <= self.graph_tokens:
            return ms
        return ms + self.no_graph_ms + self.read_token_ms * new


class DraftRounds(_Strict):
    """A large model that speculates: the small one drafts, a pass verifies what it drafted."""

    drafts: int = Field(default=4, ge=1, description="tokens that are drafted for each pass")
    tokens_a_round: float = Field(default=4.1, ge=1, description="that a pass then makes")


class MeasuredRow(_Strict):
    """What the first questions of each set took on the hardware itself."""

    policy: str
    clients: int = Field(ge=1)
    questions_a_set: int = Field(ge=1)
    unit: Literal["seconds", "requests_per_s"]
    measured: float = Field(gt=0)


class Costs(_Strict):
    """A pair of models on stated hardware, and where its figures come from."""

    name: str
    hardware: str
    sources: tuple[str, ...] = Field(min_length=1, description="where every figure is from")
    assumptions: tuple[str, ...] = ()
    shared_device: bool = Field(default=False, description="both models are on one device")
    small: WorkerCosts
    large: WorkerCosts
    speculation: DraftRounds = DraftRounds()
    measured: tuple[MeasuredRow, ...] = ()

    @property
    def most(self) -> int:
        """The most requests at once that the figures are for."""
        return min(self.small.most, self.large.most)


def load_costs(source: str) -> Costs:
    """Costs by file, or by the name of a file in deploy/lab/costs.

    Raises:
        ConfigError: names the file and the key that is wrong.
    """
    path = Path(source)
    if not path.is_file() and (HERE / f"{source}.yaml").is_file():
        path = HERE / f"{source}.yaml"
    try:
        return Costs.model_validate(yaml.safe_load(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        known = ", ".join(sorted(one.stem for one in HERE.glob("*.yaml")))
        raise ConfigError(f"{source}: {error.strerror or error}; there are {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None
