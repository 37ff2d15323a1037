"""What answers and errors of every worker say alike: how long a call took, what failed."""

from __future__ import annotations

from time import perf_counter


def ms_since(began: float) -> float:
    """Milliseconds since a `perf_counter`."""
    return (perf_counter() - began) * 1e3


def first_line(error: BaseException) -> str:
    """What an error says, or else what caused it, in one line; its kind where neither says it."""
    lines = str(error).strip().splitlines() or str(error.__cause__ or "").strip().splitlines()
    return lines[0] if lines else type(error).__name__
