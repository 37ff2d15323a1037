"""Speculative Thinking (arXiv 2504.12329): the small model thinks, the large one helps in doubt.

A reasoning model changes its mind mostly right after a blank line (Table 1). So after each
paragraph the small model writes a *probe* of n1 tokens. Its keywords (appendix A.2) show its kind:
an affirmation ("yes"), a reflection ("wait"; a verification counts as one) or a statement.

1. Affirmation or reflection: the large model writes these n1 tokens instead.
2. Verification: if the kept text has such a keyword, the large model continues for n2 tokens.
3. Excessive reflection: after `patience` kept reflections the policy inserts a sentence that calls
   for a check, the large model continues it for n3 tokens, and both numbers grow (the released code
   anneals them; the paper does not mention it). If the chain is the answer, which has only the
   models' text, no sentence is inserted, but the large model still writes its tokens.

The large model always writes a number of tokens, and the small one continues to the end of the
paragraph, usually in mid-sentence. A small model that does not reason uses none of the keywords:
let the large one `begin`, and take over at `every_delimiter`.

The paper and its code leave choices. The code discards a probe that is a statement, and the small
model writes it again. Here it is committed, and so ends at the next delimiter: greedy text is the
same, and a second sampled draw cannot be a reflection that no rule sees. As in the code, rule 3 is
checked first, rule 2 only after the large model, and both by the text that was kept. A keyword
counts wherever its letters occur ("check" in "checkers" too). If the large model fails, the small
one continues alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from orchestrator.loop.actions import Accept, Reject, Script, Write
from orchestrator.loop.policy import Policy
from orchestrator.types import Segment, StopCriteria, Transcript
from policies.steps import DELIMITER, Delimiters, attempt, drafted, last_writer, write_out

Keywords: TypeAlias = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"\S", to_lower=True, max_length=64)], ...],
    Field(max_length=64),
]


class SpeculativeThinking(Policy):
    """The small model thinks; keywords after a blank line call the large one for a few tokens."""

    n1: int = Field(default=20, ge=1, description="tokens of a probe, and of what replaces it")
    n2: int = Field(default=125, ge=0, description="tokens of a verification takeover; 0: none")
    n3: int = Field(default=125, ge=1, description="tokens that follow the check sentence")
    n3_growth: int = Field(default=25, ge=0, description="added to n3 at each check")
    n3_max: int = Field(default=200, ge=1, description="n3 grows no further than this")
    patience: int | None = Field(
        default=15, ge=1, description="kept reflections before a check; null: no checks"
    )
    patience_growth: int = Field(default=5, ge=0, description="added to patience at each check")
    patience_max: int = Field(default=30, ge=1, description="patience grows no further than this")
    check: str = Field(
        default="Let me check whether there are some wrong steps:",
        min_length=1,
        max_length=1024,
        description="the sentence that is inserted into a thought before a check",
    )
    affirmation: Keywords = Field(
        default=("yeah", "yes", "final answer", "confident"), description="words of an affirmation"
    )
    reflection: Keywords = Field(
        default=("wait", "alternatively", "hold on", "another"), description="words of a reflection"
    )
    verification: Keywords = Field(
        default=("verify", "think again", "recap", "check"),
        description="words of a verification, which is a reflection too",
    )
    choose_large: bool = Field(
        default=True,
        description="false: of probe and takeover, the probe stays unless one of the two reflects "
        "and the other does not",
    )
    every_delimiter: bool = Field(
        default=False,
        description="take over at every delimiter, for small models without reasoning",
    )
    begin: int = Field(
        default=0,
        ge=0,
        description="tokens that the large model begins with; the paper: 100 if the small model "
        "does not reason",
    )
    step_tokens: int = Field(
        default=1024, ge=1, description="cap on what the small model writes in one go"
    )
    delimiters: Delimiters = Field(default=(DELIMITER,), description="the ends of a paragraph")
    answer_by: Literal["active", "small", "large"] = Field(
        default="active",
        description="who writes the answer; active: the model that ended the thought",
    )

    def solve(self, transcript: Transcript) -> Script[None]:
        reflections, patience, n3 = 0, self.patience, self.n3
        if self.begin:
            transcript = yield from self._take_over(transcript, self.begin)
        while transcript.is_open:
            end = transcript.chain.text(-2)  # spaces may follow in a delimiter's token
            if not end.endswith(self.delimiters) and not end.rstrip(" ").endswith(self.delimiters):
                transcript = yield from self._paragraph(transcript)
            elif patience is not None and reflections >= patience:
                if transcript.thinking:  # an answer is the models' own, and may have to keep a form
                    transcript = yield from Accept(transcript, Segment("policy", self.check))
                transcript = yield from self._take_over(transcript, n3)
                reflections = 0
                patience = _grown(patience, self.patience_growth, self.patience_max)
                n3 = _grown(n3, self.n3_growth, self.n3_max)
            else:
                transcript, mood = yield from self._sentence(transcript)
                reflections += mood < 0
        by = last_writer(transcript) if self.answer_by == "active" else self.answer_by
        if by == "large":
            yield from write_out(transcript, "large", "small")
        else:
            yield from write_out(transcript, "small", "large")

    def _sentence(self, transcript: Transcript) -> Script[tuple[Transcript, int]]:
        """Write the text after a delimiter (rules 1 and 2), and return its mood."""
        if self.every_delimiter and self.choose_large:
            after = yield from self._take_over(transcript, self.n1)  # whatever a probe would say
        else:
            criteria = StopCriteria(self.n1, until=self.delimiters)
            probe = yield from drafted("small", transcript, criteria)
            if probe is None:  # the next `Write` shows why
                return (yield from self._paragraph(transcript)), 0
            mood = self._mood(probe.text)
            if mood == 0 and not self.every_delimiter:
                return (yield from Accept(transcript, probe)), 0
            if self.choose_large:
                yield from Reject(probe)
                after = yield from self._take_over(transcript, self.n1)
            else:
                after = yield from self._choose(transcript, probe, mood)
        kept = after.chain.text(len(transcript.chain))
        if self.n2 and after.is_open and _count(kept, self.verification):
            after = yield from self._take_over(after, self.n2)
        return after, self._mood(kept)

    def _choose(self, transcript: Transcript, probe: Segment, mood: int) -> Script[Transcript]:
        """Keep the probe, or the large model's draft if just one of the two is a reflection.

        A statement is only compared at `every_delimiter`, and stays.
        """
        draft = yield from drafted("large", transcript, StopCriteria(self.n1))
        if draft is None:
            return (yield from Accept(transcript, probe))
        large = mood != 0 and (mood < 0) != (self._mood(draft.text) < 0)
        kept, dropped = (draft, probe) if large else (probe, draft)
        yield from Reject(dropped)
        return (yield from Accept(transcript, kept))

    def _paragraph(self, transcript: Transcript) -> Script[Transcript]:
        """Let the small model write up to the next delimiter, or the large one if it cannot."""
        criteria = StopCriteria(self.step_tokens, until=self.delimiters)
        after = yield from attempt(Write("small", transcript, criteria))
        return (yield from Write("large", transcript, criteria)) if after is None else after

    def _take_over(self, transcript: Transcript, tokens: int) -> Script[Transcript]:
        """Let the large model write this many tokens; if it cannot, the small one continues."""
        after = yield from attempt(Write("large", transcript, StopCriteria(tokens)))
        return (yield from self._paragraph(transcript)) if after is None else after

    def _mood(self, text: str) -> int:
        """Return 1 for an affirmation, -1 for a reflection (also a draw), 0 for a statement."""
        yes = _count(text, self.affirmation)
        no = _count(text, self.reflection) + _count(text, self.verification)
        if yes > no:
            return 1
        return -1 if no else 0


def _count(text: str, keywords: Iterable[str]) -> int:
    """Count the keywords, in small or capital letters."""
    return sum(text.lower().count(keyword) for keyword in keywords)


def _grown(value: int, growth: int, cap: int) -> int:
    return max(value, min(value + growth, cap))
