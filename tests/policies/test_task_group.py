"""Concurrent scripts: which one advances when, and what a failure leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import Cancel, Classify, First, Generate, Job, Script, Start
from orchestrator.types import StopCriteria
from policies.task_group import TaskGroup, gather
from tests.policies.plays import TRACE

GONE = WorkerUnavailable("gone")
SMALL = Generate("small", TRACE, StopCriteria(1))
LARGE = Generate("large", TRACE, StopCriteria(1))
JUDGE = Classify("large", TRACE, (), "", ("1",))


def twice(seen: list[Any]) -> Script[str]:
    """Two actions, one after the other."""
    seen.append((yield from SMALL))
    seen.append((yield from JUDGE))
    return "done"


def nothing() -> Script[str]:
    """No action at all."""
    return "at once"
    yield


def test_tasks_advance_independently() -> None:
    seen: list[Any] = []
    script = gather([twice(seen), LARGE])
    assert next(script) == Start(SMALL)
    assert script.send(Job(0)) == Start(LARGE)
    assert script.send(Job(1)) == First((Job(0), Job(1)))
    assert script.send((Job(0), "s")) == Start(JUDGE)
    assert script.send(Job(2)) == First((Job(1), Job(2)))
    assert script.send((Job(2), "j")) == First((Job(1),))
    with pytest.raises(StopIteration) as end:
        script.send((Job(1), "l"))
    assert (end.value.value, seen) == (["done", "l"], ["s", "j"])


def test_a_task_without_an_action_ends_at_once() -> None:
    with pytest.raises(StopIteration) as end:
        next(gather([nothing(), nothing()]))
    assert end.value.value == ["at once", "at once"]
    with pytest.raises(StopIteration) as end:
        next(gather([]))
    assert end.value.value == []


def test_a_failure_cancels_the_others() -> None:
    script = gather([SMALL, LARGE])
    next(script)
    script.send(Job(0))
    script.send(Job(1))
    assert isinstance(script.throw(GONE), Cancel)
    assert isinstance(script.send(None), Cancel)
    with pytest.raises(WorkerUnavailable):
        script.send(None)


def test_a_failure_to_begin_cancels_those_that_have_begun() -> None:
    script = gather([SMALL, LARGE])
    next(script)
    assert script.send(Job(0)) == Start(LARGE)
    assert script.throw(GONE) == Cancel(Job(0))
    with pytest.raises(WorkerUnavailable):
        script.send(None)


def test_cancelling_closes_the_scripts() -> None:
    closed: list[bool] = []

    def careful() -> Script[None]:
        try:
            yield from SMALL
        finally:
            closed.append(True)

    tasks: TaskGroup[str] = TaskGroup()
    start = tasks.start("a", careful())
    assert next(start) == Start(SMALL)
    with pytest.raises(StopIteration):
        start.send(Job(0))
    assert len(tasks) == 1
    stop = tasks.cancel()
    assert next(stop) == Cancel(Job(0))
    with pytest.raises(StopIteration):
        stop.send(None)
    assert (len(tasks), closed) == (0, [True])
