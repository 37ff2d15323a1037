"""Checks of methods' parameters; each raises a ValueError that names the parameter."""

from __future__ import annotations

from collections.abc import Sequence

from workers.model.target import SPARE

MOST_NODES = SPARE - 2  # a drafter's cache lags by at most two committed tokens


def at_least(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def fraction(name: str, value: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, not {value!r}")
    return value


def true_or_false(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def branching_factors(branching: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(branching, list | tuple):
        raise ValueError(f"branching must be a list of whole numbers, not {branching!r}")
    nodes, level = 1, 1
    for count in branching:
        level *= at_least("branching", count, 1)
        nodes += level
    tree_size(f"branching {list(branching)}", nodes)
    return tuple(branching)


def tree_size(what: str, nodes: int) -> None:
    if nodes > MOST_NODES:
        raise ValueError(f"{what}: a tree of {nodes} nodes, and at most {MOST_NODES} have room")
