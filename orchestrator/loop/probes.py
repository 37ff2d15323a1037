"""Stop when sure: at the end of a step the small model probes the answer a few tokens deep.

A probe is a draft after the thought as if it had ended there; nothing of it is accepted. Once
enough probes in a row give the same answer, each without a doubtful token, the thought ends. The
runner makes the probes between a policy's actions, so they work under every policy and in a replay.
A probe that fails counts as a doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from orchestrator.answers.equality import equal
from orchestrator.answers.text import final
from orchestrator.loop.actions import Generate
from orchestrator.loop.ending import ends_step
from orchestrator.loop.policy import Policy
from orchestrator.types import Generation, Segment, StopCriteria, Transcript

_BOXED = re.compile(r"\\boxed\{[^{}]*\}")
"""An answer that is whole though its text is not."""


@dataclass(slots=True)
class Probes:
    """The probes of one request under a policy."""

    policy: Policy
    _agreeing: int = 0
    _answer: str = ""
    _probed: int = 0  # segments of the thought at the latest probe

    def after(self, transcript: Transcript) -> Generate | None:
        """Return the probe of a thought's answer; None if none is due."""
        thought = transcript.thought
        if self.policy.sure is None or transcript.closed or len(thought) <= self._probed:
            return None
        if not ends_step(thought):
            return None
        self._probed = len(thought)
        asked = replace(transcript, closed=True, forced=True)
        if self.policy.probe:
            asked = asked.extend(Segment("policy", self.policy.probe))
        return Generate("small", asked, StopCriteria(self.policy.probe_tokens))

    def settle(self, result: Any) -> bool:
        """Take a probe's result; return whether the answer is certain."""
        answer = self._certain(result)
        if answer and equal(answer, self._answer):
            self._agreeing += 1
        else:
            self._agreeing = int(bool(answer))
        self._answer = answer
        return self.policy.sure is not None and self._agreeing >= self.policy.sure

    def _certain(self, result: Any) -> str:
        """Return the answer of a probe; empty if it failed or doubts."""
        if not isinstance(result, Generation) or not result.segment.logprobs:
            return ""
        least = exp(min(result.segment.logprobs))
        text = self.policy.probe + result.segment.text
        # "think_end": the model continued its thought.
        is_whole = result.segment.finish in ("eos", "stop") or _BOXED.search(text)
        return final(text) if least >= self.policy.sure_at and is_whole else ""
