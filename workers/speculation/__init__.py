"""Token-level speculation: draft, score in one target pass, verify, commit.

A method is one file here and one line in `METHODS`. In reading order:

- `decode`: the token loop, `Decoder.step`.
- `method`: the interface of a method, and verification by rejection sampling.
- `rejection`: node-level rejection samplers, and how they verify a tree.
- `drafter`: a draft model that grows token trees level by level, and its cache.
- `parameters`: checks of methods' parameters.
- `vanilla`: plain decoding.
- `chain`: speculative sampling with a draft model.
- `lookup`: drafts copied from the text itself.
- `spectr`: several independent sequences, with optimal transport.
- `recursive`: trees drawn without replacement: of constant branching, or stochastic beams.
- `kangaroo`: self-speculation through an early-exit head.
- `feature_head`: feature drafters: one decoder layer between the target's embedding and head.
- `fspad`: a feature drafter on EAGLE-2's dynamic trees.
- `auto`: the fastest method and draft length, by measuring.
- `lossy`: a method over a lossless one.
- `reflective`: reflective verification; lossy.
- `relaxed`: accepts drafts that are nearly as likely as the target's choice; lossy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.model.target import Target
from workers.speculation.auto import Auto
from workers.speculation.chain import Chain
from workers.speculation.drafter import LoadModel
from workers.speculation.fspad import Fspad
from workers.speculation.kangaroo import Kangaroo
from workers.speculation.lookup import Lookup
from workers.speculation.method import Method
from workers.speculation.recursive import RecursiveBeam, RecursiveConstant
from workers.speculation.reflective import Reflective
from workers.speculation.relaxed import Relaxed
from workers.speculation.spectr import Spectr
from workers.speculation.vanilla import Vanilla

Builder = Callable[..., Method]
"""`builder(target, load_model, **parameters)`; an unknown parameter is a TypeError."""

METHODS: dict[str, Builder] = {
    "vanilla": Vanilla,
    "chain": Chain,
    "lookup": Lookup,
    "spectr": Spectr,
    "recursive-c": RecursiveConstant,
    "recursive-s": RecursiveBeam,
    "kangaroo": Kangaroo,
    "fspad": Fspad,
    "auto": Auto,  # chooses among the others
    "reflective": Reflective,  # lossy, over others, as the next
    "relaxed": Relaxed,
}
Method.registry = METHODS


def build(name: str, target: Target, load_model: LoadModel, **parameters: Any) -> Method:
    """Build a method; raise KeyError for an unknown name, TypeError for an unknown parameter."""
    return METHODS[name](target, load_model, **parameters)
