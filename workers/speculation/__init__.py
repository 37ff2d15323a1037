"""Token-level speculation: draft, verify in one target pass, walk, keep.

`decode.py` is the loop. A method is one file here and one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.model.target import Target
from workers.speculation.auto import Auto
from workers.speculation.chain import Chain
from workers.speculation.drafter import LoadModel
from workers.speculation.fspad import Fspad
from workers.speculation.greedy_multi import GreedyMulti
from workers.speculation.kangaroo import Kangaroo
from workers.speculation.lookup import Lookup
from workers.speculation.method import Method
from workers.speculation.recursive_c import RecursiveConstant
from workers.speculation.recursive_s import RecursiveBeam
from workers.speculation.reflective import Reflective
from workers.speculation.spectr import Spectr
from workers.speculation.vanilla import Vanilla

Builder = Callable[..., Method]
"""`builder(target, load_model, **parameters)`; unknown parameters are refused."""

METHODS: dict[str, Builder] = {
    "vanilla": Vanilla,
    "chain": Chain,
    "lookup": Lookup,
    "spectr": Spectr,
    "recursive-c": RecursiveConstant,
    "recursive-s": RecursiveBeam,
    "greedy-multi": GreedyMulti,
    "kangaroo": Kangaroo,
    "fspad": Fspad,
    "auto": Auto,  # chooses among the others
    "reflective": Reflective,  # lossy, over any of the others
}
Auto.registry = Reflective.bases = METHODS


def build(name: str, target: Target, load_model: LoadModel, **parameters: Any) -> Method:
    """The method of that name; KeyError for an unknown one, TypeError for a wrong parameter."""
    return METHODS[name](target, load_model, **parameters)
