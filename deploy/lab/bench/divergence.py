"""Where greedy texts part from plain decoding's, and how near to a tie that is.

A pass over several tokens rounds otherwise than a pass over one. In float32 that never shows here;
in half precision two tokens whose logits lie closer than the rounding may change places, and from
there on the texts differ. A wide margin would be a defect and not rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deploy.lab.bench.rounds import Row, Turns
from workers.model.target import Target


@torch.inference_mode()
def divergences(
    turns: Sequence[Turns], base: Turns, prompts: Sequence[list[int]], target: Target
) -> dict[str, Row]:
    """By label of a lossless candidate whose texts part from the base's: `divergence_margin`, the
    widest of the margins, in logits, between the two tokens where they first do. None: a text is
    another's beginning.
    """
    plain = [output for group in base.works for output in group[0].outputs]
    margins_by_label: dict[str, Row] = {}
    for one in turns:
        candidate = one.candidate
        if not candidate.lossless or candidate.dtype != base.candidate.dtype:
            continue
        margins, first = [], 0
        for group in one.works:
            for at in range(len(group[0].outputs)):
                expected = plain[first + at]
                others = {tuple(work.outputs[at]) for work in group} - {tuple(expected)}
                margins += [
                    _margin(target, prompts[first + at], output, expected) for output in others
                ]
            first += len(group[0].outputs)
        if margins:
            known = [margin for margin in margins if margin is not None]
            widest = max(known) if len(known) == len(margins) else None
            margins_by_label[candidate.entry.label] = {"divergence_margin": widest}
    return margins_by_label


def _margin(
    target: Target, prompt: list[int], output: Sequence[int], expected: list[int]
) -> float | None:
    """Between the first two tokens that differ; None where one text is the other's beginning."""
    pairs = enumerate(zip(output, expected, strict=False))
    at = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if at is None:
        return None
    text = prompt + expected[:at]
    target.cache.evict(0)
    logits = target.prefill(0, text).logits[0, -1].float()
    return abs(float(logits[output[at]] - logits[expected[at]]))
