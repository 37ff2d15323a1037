"""The memory that a live request holds."""

from __future__ import annotations

from deploy.lab.bench.instant import STEP
from deploy.lab.bench.memory import request_bytes

HELD_BYTES = 300
"""Limit on the bytes a token that a live request holds."""


def test_what_a_request_holds_is_bounded_by_its_tokens() -> None:
    short, long = request_bytes(40 * STEP), request_bytes(240 * STEP)
    assert 0 < long < HELD_BYTES
    assert long < 1.1 * short  # it grows no faster than the thought
