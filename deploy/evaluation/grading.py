"""Whether an answer is right: numbers are compared here, all else in another process.

Computer algebra and other projects' scorers can hang in ways that no thread can end. They run in a
pool of processes: one that does not answer in time is killed, and its answer counts as wrong. The
pool starts with the first answer that needs it, which a plain number never does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from deploy.service.extras import want
from orchestrator.answers.equality import compare, equal
from orchestrator.answers.text import expected, final

if TYPE_CHECKING:
    from pebble import ProcessPool

    from deploy.evaluation.evaluate import Question

LONGEST = 2000  # characters of an answer that algebra is tried on


class Grader:
    """Compares answers by value; `timeout_s` bounds one comparison in the pool of `processes`."""

    def __init__(self, timeout_s: float = 5.0, processes: int = 1) -> None:
        self._timeout_s, self._processes = timeout_s, processes
        self._pool: ProcessPool | None = None
        self.timeouts = 0

    async def right(self, text: str, problem: Question) -> bool:
        """Return whether a text answers a problem."""
        if problem.accepts is None:
            return await self.same(text, problem.answer)
        return await self._in_time(problem.accepts, final(text))

    async def same(self, text: str, answer: str) -> bool:
        """Return whether a text gives this answer."""
        easy = compare(text, answer)
        if easy is not None:
            return easy
        given, wanted = final(text), expected(answer)
        if len(given) > LONGEST or len(wanted) > LONGEST:
            return False
        return await self._in_time(algebra, given, wanted)

    async def _in_time(self, judge: Callable[..., bool], *given: Any) -> bool:
        """Return the verdict of a process of the pool; False if it takes too long."""
        future = self._opened().schedule(judge, args=given, timeout=self._timeout_s)
        try:
            return await asyncio.wrap_future(cast("Future[bool]", future))
        except TimeoutError:
            self.timeouts += 1
            return False
        except Exception:
            return False  # an answer that the algebra system cannot read is wrong

    def _opened(self) -> ProcessPool:
        if self._pool is None:
            want("eval", "a comparison by algebra", "pebble", "math_verify")
            from pebble import ProcessPool

            # Spawned, since this process may have a model's threads, which a fork would break.
            spawning = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(self._processes, context=spawning, initializer=_prepare)
        return self._pool

    def close(self) -> None:
        """Stop the processes and drop their work."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def _prepare() -> None:
    """Import slow packages before the first comparison's time starts."""
    import logging

    import math_verify  # noqa: F401

    logging.disable(logging.CRITICAL)


def algebra(given: str, wanted: str) -> bool:
    """Return whether two answers are equal, with expressions compared by math-verify."""
    return equal(given, wanted, _verified) is True


def _verified(given: str, wanted: str) -> bool:
    r"""Return math-verify's verdict on two expressions, each in a box.

    It reads bare LaTeX only between dollar signs. By default \sqrt{2} equals 1.414214, 5h equals 5
    (h is taken for a unit), and x > 5 equals (5, \infty) only in this order: the options below
    change that.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    spelling = replace(LatexExtractionConfig().normalization_config, units=False)
    config = [LatexExtractionConfig(normalization_config=spelling)]
    gold, ours = (
        parse(f"\\boxed{{{text}}}", config, parsing_timeout=None, raise_on_error=False)
        for text in (wanted, given)
    )
    exact = verify(
        gold, ours, float_rounding=12, allow_set_relation_comp=True, timeout_seconds=None,
        raise_on_error=False,
    )  # fmt: skip
    return bool(exact)
