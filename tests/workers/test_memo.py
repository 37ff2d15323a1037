"""Results are kept within a number of bytes, whatever their number."""

from __future__ import annotations

import pytest

from workers import memo
from workers.memo import ENTRY_BYTES, remembered


def test_what_is_remembered_is_bounded_in_bytes() -> None:
    made: list[int] = []

    def text(size: int) -> str:
        made.append(size)
        return "x" * size

    kept = remembered(text, 4 * (ENTRY_BYTES + 100), len)
    for size in (100, 99, 98, 97):
        kept(size)
    kept(100)
    assert made == [100, 99, 98, 97]
    kept(200)  # for which the two that were used longest ago go
    kept(100)
    assert made == [100, 99, 98, 97, 200]
    kept(99)
    assert made[-1] == 99


def test_what_alone_takes_too_much_is_not_kept() -> None:
    made: list[int] = []
    kept = remembered(lambda size: made.append(size) or "x" * size, 1000, len)  # type: ignore[func-returns-value]
    assert kept(10_000) == kept(10_000) == "x" * 10_000
    assert made == [10_000] * 2


def test_what_is_old_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "KEPT_S", 0.0)
    made: list[int] = []
    kept = remembered(lambda size: made.append(size) or "x" * size, 10_000, len)  # type: ignore[func-returns-value]
    assert kept(10) == kept(10)
    assert made == [10, 10]
