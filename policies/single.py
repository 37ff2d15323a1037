"""One model alone: the baselines of every policy."""

from __future__ import annotations

from typing import ClassVar

from orchestrator.loop.actions import Script, WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.types import Transcript
from policies.steps import write_out


class SmallOnly(Policy):
    """The small model thinks and answers: the cheap end of the scale."""

    workers: ClassVar[frozenset[WorkerName]] = frozenset({"small"})

    def solve(self, transcript: Transcript) -> Script[None]:
        yield from write_out(transcript, "small")


class LargeOnly(Policy):
    """The large model thinks and answers: the baseline of every speedup."""

    workers: ClassVar[frozenset[WorkerName]] = frozenset({"large"})

    def solve(self, transcript: Transcript) -> Script[None]:
        yield from write_out(transcript, "large")
