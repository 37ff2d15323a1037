"""Is this answer right? Numbers are compared here, all else in another process.

Computer algebra, and scorers of others, can hang in ways that no thread can end. They run in a pool
of processes: one that does not answer in time is killed, and its answer counts as wrong. The pool
starts with the first answer that needs it; plain numbers never do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from deploy.service.extras import want
from orchestrator.experiments.answer_equality import compare, equal
from orchestrator.experiments.answer_text import expected, final

if TYPE_CHECKING:
    from pebble import ProcessPool

    from deploy.evaluation.evaluate import Problem

LONGEST = 2000  # characters of an answer that algebra is tried on


@runtime_checkable
class Scored(Protocol):
    """A problem that knows its right answers, which no value describes."""

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
        return await self._in_time(_accepted, problem, final(text))

    async def same(self, text: str, answer: str) -> bool:
        """Whether a text gives this answer."""
        easy = compare(text, answer)
        if easy is not None:
            return easy
        given, wanted = final(text), expected(answer)
        if len(given) > LONGEST or len(wanted) > LONGEST:
            return False
        return await self._in_time(algebra, given, wanted)

    async def _in_time(self, judge: Callable[..., bool], *given: Any) -> bool:
        """A verdict of a process of the pool; False if it takes too long."""
        future = self._opened().schedule(judge, args=given, timeout=self._timeout_s)
        try:
            return await asyncio.wrap_future(cast("Future[bool]", future))
        except TimeoutError:
            self.timeouts += 1
            return False
        except Exception:
            return False  # what the algebra system chokes on is not the answer

    def _opened(self) -> ProcessPool:
        if self._pool is None:
            want("eval", "a comparison by algebra", "pebble", "math_verify")
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


def _accepted(problem: Scored, answer: str) -> bool:
    return problem.accepts(answer)


def algebra(given: str, wanted: str) -> bool:
    """Whether two answers are equal, their expressions by math-verify."""
    return equal(given, wanted, _verified) is True


def _verified(given: str, wanted: str) -> bool:
    r"""math-verify's verdict; it reads boxes surely, and bare LaTeX only between dollar signs.

    By default \sqrt{2} equals 1.414214, 5h equals 5 (h is taken for a unit), and x > 5 equals
    (5, \infty) in this order alone.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    spelling = replace(LatexExtractionConfig().normalization_config, units=False)
    config = [LatexExtractionConfig(normalization_config=spelling)]
    gold, ours = (
        parse(f"\\boxed{{{text}}}", config, parsing_timeout=None, raise_on_error=False)
        for text in (wanted, given)
    )
    return bool(
        verify(
            gold,
            ours,
            float_rounding=12,
            allow_set_relation_comp=True,
            timeout_seconds=None,
            raise_on_error=False,
        )
    )
