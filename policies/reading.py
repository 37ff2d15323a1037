"""The large model's reading of drafts: one pass over the tokens of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from operator import add

from orchestrator.errors import Unsupported
from orchestrator.loop.actions import Script, Verify
from orchestrator.types import ENDED, Segment, Transcript, Verification
from policies.steps import attempt


def read(transcript: Transcript, drafts: Sequence[Segment]) -> Script[list[Verification] | None]:
    """Return the verification of each draft, which follows those before it; None if it fails."""
    whole = yield from attempt(Verify("large", transcript, reduce(add, drafts)))
    if whole is None:
        return None
    parts, start = [], 0
    for draft in drafts:
        end = start + len(draft.tokens)
        parts.append(
            replace(
                whole,
                nll=whole.nll[start:end],
                choices=whole.choices[start : end + 1],
                pieces=whole.pieces[start:end],
                options=whole.options[start : end + 1],
                ending=whole.ending if draft is drafts[-1] else None,
            )
        )
        start = end
    return parts


def unlikely(draft: Segment, verification: Verification) -> dict[int, float]:
    """Return where the large model would have written another token, and the draft's nll there.

    The place after all tokens is that of the end which the draft claims.

    Raises:
        Unsupported: the large worker does not say what it would have written.
    """
    if len(verification.options) != len(verification.nll) + 1:
        raise Unsupported(
            "the large worker does not give its choices as text, which this policy needs"
        )
    found = {
        place: nll
        for place, nll in enumerate(verification.nll)
        if verification.choices[place] != draft.tokens[place]
    }
    claimed = draft.finish in ENDED  # no model chose a caller's stop string
    if claimed and verification.options[-1].finish != draft.finish:
        found[len(draft.tokens)] = inf if verification.ending is None else verification.ending
    return found
