"""Self-consistency (arXiv 2203.11171): chains by the small model, and a vote on their answers.

The small model drafts a chain with its answer, then others from the question, until `agree` of them
give the same answer: the first of these is accepted. If no answer gets that many votes, the large
model writes a chain. Answers are compared by value, as those of shadow arms are.

The first chain is sampled as the request asks, the others at `temperature`: a greedy request gets
different chains too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from orchestrator.answers.equality import agree
from orchestrator.loop.actions import REST, Accept, Generate, Reject, Script
from orchestrator.loop.policy import Policy
from orchestrator.types import Segment, Transcript
from policies.steps import attempt, ends, write_out


@dataclass(frozen=True, slots=True)
class DraftedChain:
    """The drafts of a thought, if there is one, and of its answer; `answer` is empty if cut."""

    drafts: tuple[Segment, ...] = ()
    answer: str = ""


class Vote(Policy):
    """Several chains by the small model; the large one writes if their answers differ."""

    chains: int = Field(default=3, ge=2, le=16, description="most chains of the small model")
    agree: int = Field(
        default=2, ge=2, description="equal answers that end the vote; at most `chains`"
    )
    temperature: Annotated[float, Field(gt=0, le=2)] = Field(
        default=0.7, description="of all chains but the first, which is sampled as requested"
    )

    @field_validator("agree")
    @classmethod
    def _possible(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("chains", value):
            raise ValueError("cannot be above chains")
        return value

    def solve(self, transcript: Transcript) -> Script[None]:
        drawn: list[DraftedChain] = []
        chosen = DraftedChain()
        while len(drawn) < self.chains and not chosen.drafts:
            latest = yield from draw(transcript, self.temperature if drawn else None)
            if not latest.drafts:
                break  # the small model cannot write
            drawn.append(latest)
            same = [chain for chain in drawn if same_vote(chain, latest)]
            chosen = same[0] if len(same) >= self.agree else chosen
        for chain in drawn:
            for draft in chain.drafts if chain is not chosen else ():
                yield from Reject(draft)
        for draft in chosen.drafts:
            if not transcript.done:  # calls of tools may end a thought, and the turn with it
                transcript = yield from Accept(transcript, draft)
        yield from write_out(transcript, "large")


def draw(transcript: Transcript, temperature: float | None) -> Script[DraftedChain]:
    """Draft a chain to the end of its answer; a worker's failure or a cap on both cuts it."""
    drafts: tuple[Segment, ...] = ()
    while True:
        made = yield from attempt(Generate("small", transcript, REST, temperature))
        if made is None:
            return DraftedChain(drafts)
        draft = made.segment
        drafts += (draft,)
        # A thought that the policy's budget cut may continue and end by itself before the answer.
        thinks_on = transcript.forced and draft.finish == "think_end"
        if transcript.closed and not thinks_on:
            return DraftedChain(drafts, draft.text.strip() if ends(draft) else "")
        written = transcript.ends + ends(draft)
        forced = not transcript.closed and not ends(draft)
        transcript = replace(transcript.extend(draft), closed=True, forced=forced, ends=written)


def same_vote(chain: DraftedChain, other: DraftedChain) -> bool:
    """Return whether both chains have an answer, and the same one."""
    return bool(chain.answer and other.answer) and agree(chain.answer, other.answer) is True
