"""Each step by one model or the other at random: the baseline of policies that share a thought.

A policy that is no better at the same share of large tokens does not find the steps that need it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar

from pydantic import Field

from orchestrator.loop.actions import Script, Write
from orchestrator.types import Message, Transcript
from policies.steps import Stepwise, attempt


class Coin(Stepwise):
    """Each step by the large model with one probability, else by the small one."""

    calibrated: ClassVar[str | None] = "large_probability"

    large_probability: float = Field(
        default=0.5, ge=0, le=1, description="how often a step is the large model's"
    )
    seed: int = Field(default=0, description="of the random choices")

    def solve(self, transcript: Transcript) -> Script[None]:
        tosses = 0
        while transcript.is_open:
            tosses, written = tosses + 1, None
            if toss(self.seed, transcript.messages, tosses) >= self.large_probability:
                written = yield from attempt(Write("small", transcript, self.criteria))
            if written is None:
                written = yield from Write("large", transcript, self.criteria)
            transcript = written
        yield from self.answer(transcript)


def toss(seed: int, messages: tuple[Message, ...], step: int) -> float:
    """Return a number in [0, 1), the same for the same conversation and step, as in a replay."""
    digest = blake2b(repr((seed, step, messages)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64
