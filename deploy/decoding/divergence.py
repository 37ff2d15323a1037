"""Where greedy texts part from plain decoding's, and how near to a tie that is.

A pass over several tokens rounds otherwise than a pass over one. In float32 that never shows here;
in half precision two tokens whose logits lie closer than the rounding may change places, and from
there on the texts differ. A wide margin would be a defect and not rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deploy.decoding.rounds import Row, Turns
from workers.speculation.target import Target


@torch.inference_mode()
def divergences(
    turns: Sequence[Turns], base: Turns, prompts: Sequence[list[int]], target: Target
) -> dict[str, Row]:
    """By label of a lossless contender whose texts part from the base's: how many prompts'
    (`diverging_prompts`), and the widest of the margins (`divergence_margin`), in logits, between
    the two tokens where they first do.
    """
    plain = [outputs for group in base.works for outputs in group[0].outputs]
    found = {}
    for one in turns:
        contender = one.contender
        if not contender.lossless or contender.dtype != base.contender.dtype:
            continue
        texts = [outputs for group in one.works for outputs in group[0].outputs]
        margins = [
            _margin(target, prompt, said, wanted)
            for prompt, said, wanted in zip(prompts, texts, plain, strict=True)
            if said != wanted
        ]
        if margins:
            found[contender.entry.label] = {
                "diverging_prompts": len(margins), "divergence_margin": max(margins),
            }  # fmt: skip
    return found


def _margin(target: Target, prompt: list[int], said: list[int], wanted: list[int]) -> float:
    """Between the first two tokens that differ; infinite where one text begins the other."""
    pairs = enumerate(zip(said, wanted, strict=False))
    at = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if at is None:
        return float("inf")
    target.cache.claim(0, [], 0)
    law = target.read(0, prompt + wanted[:at]).logits[0, -1].float()
    return abs(float(law[said[at]] - law[wanted[at]]))
