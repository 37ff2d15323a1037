"""Call times and error messages, the same for every worker."""

from __future__ import annotations

from time import perf_counter


def ms_since(began: float) -> float:
    """Return the milliseconds since `began`, a value of `perf_counter`."""
    return (perf_counter() - began) * 1e3


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, else of its cause's, else its type's name."""
    lines = str(error).strip().splitlines() or str(error.__cause__ or "").strip().splitlines()
    return lines[0] if lines else type(error).__name__
