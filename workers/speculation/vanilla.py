"""No speculation: a tree with one node."""

from __future__ import annotations

from workers.model.target import Target
from workers.speculation.method import Method


class Vanilla(Method):
    """Plain decoding, one token a pass."""

    drafts = False

    def __init__(self, target: Target, load_model: object = None) -> None:
        super().__init__(target)
