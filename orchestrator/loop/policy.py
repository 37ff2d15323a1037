"""What a policy is: typed parameters and a script. Thresholds live here, never in a worker."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.loop.actions import Script, WorkerName
from orchestrator.types import Transcript


class Policy(BaseModel):
    """Base of every policy; a subclass is one paper, its fields are the paper's knobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: ClassVar[frozenset[WorkerName]] = frozenset({"small", "large"})
    calibrated: ClassVar[str | None] = None
    """The field that trades accuracy for cost: what `baton calibrate` sets, within its bounds."""

    budget: int | None = Field(
        default=None, ge=1, description="cap on accepted thinking tokens; then an answer is forced"
    )

    @property
    def one_vocabulary(self) -> bool:
        """Whether ids travel from one model to the other, which then need the same tokenizer."""
        return False

    @abstractmethod
    def solve(self, transcript: Transcript) -> Script[None]:
        """Ask until the transcript is done. The driver tracks the transcript that Accept and
        Write return."""
