"""Is this answer right? Numbers at once, everything else by math-verify in a process of its own.

Computer algebra can hang in ways that no thread can end, so it runs in a pool of processes: one
that does not answer in time is killed, and its answer counts as wrong. The pool starts with the
first answer that needs it; plain numbers never do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from orchestrator.experiments.answer_equality import compare, expected, final

if TYPE_CHECKING:
    from pebble import ProcessPool

    from deploy.evaluation.evaluate import Problem

LONGEST = 2000  # characters of an answer that algebra is tried on


@runtime_checkable
class Scored(Protocol):
    """A problem with a scorer of its own, for answers that no value describes."""

    def accepts(self, answer: str) -> bool: ...


class Grader:
    """Compares answers by value.

    Args:
        timeout_s: seconds one comparison may take.
        processes: how many are made side by side.
    """

    def __init__(self, timeout_s: float = 5.0, processes: int = 1) -> None:
        self._timeout_s, self._processes = timeout_s, processes
        self._pool: ProcessPool | None = None
        self.timeouts = 0

    async def right(self, text: str, problem: Problem) -> bool:
        """Whether a text answers a problem."""
        if not isinstance(problem, Scored):
            return await self.same(text, problem.answer)
        if problem.accepts(final(text)):
            return True
        return bool(problem.answer) and compare(text, problem.answer) is True

    async def same(self, text: str, answer: str) -> bool:
        """Whether a text gives this answer."""
        easy = compare(text, answer)
        if easy is not None:
            return easy
        given, wanted = final(text), expected(answer)
        if len(given) > LONGEST or len(wanted) > LONGEST:
            return False
        future = self._opened().schedule(algebra, args=(given, wanted), timeout=self._timeout_s)
        try:
            return await asyncio.wrap_future(cast("Future[bool]", future))
        except TimeoutError:
            self.timeouts += 1
            return False
        except Exception:
            return False  # what the algebra system chokes on is not the answer

    def _opened(self) -> ProcessPool:
        if self._pool is None:
            from pebble import ProcessPool

            # Spawned: this process may hold a model's threads, which no fork survives.
            self._pool = ProcessPool(
                max_workers=self._processes,
                context=multiprocessing.get_context("spawn"),
                initializer=_prepare,
            )
        return self._pool

    def close(self) -> None:
        """Stop the processes; what they were at is dropped."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def _prepare() -> None:
    """The slow imports, before the first comparison's time runs."""
    import logging

    import math_verify  # noqa: F401

    logging.disable(logging.CRITICAL)


def algebra(given: str, wanted: str) -> bool:
    """math-verify's verdict; it reads boxes surely, and bare LaTeX only between dollar signs."""
    from math_verify import parse, verify

    gold, ours = (
        parse(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=False)
        for text in (wanted, given)
    )
    return bool(verify(gold, ours, timeout_seconds=None, raise_on_error=False))
