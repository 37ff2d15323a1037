"""Scripts that run concurrently within one policy: asyncio's `TaskGroup` and `gather` for scripts.

    tasks = TaskGroup()
    yield from tasks.start("draft", Generate("small", transcript, criteria))
    yield from tasks.start("score", grade(transcript, draft, ...))
    key, result = yield from tasks.next_done()   # whichever ends first

A task is a part of a script whose actions can be started as jobs. It reaches the driver as Start,
First and Cancel, so a recording replays it like any other action.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.loop.actions import A, Action, Cancel, First, Job, Script, Start

K = TypeVar("K")


class TaskGroup(Generic[K]):
    """Tasks in progress; each has a key, chosen by the caller, that comes back with its result."""

    def __init__(self) -> None:
        self._waiting: dict[Job, tuple[K, Script[Any]]] = {}
        self._done: deque[tuple[K, Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._done)

    def start(self, key: K, script: Action[Any] | Script[Any]) -> Script[None]:
        """Begin a task without waiting for it."""
        yield from self._advance(key, iter(script), None)

    def next_done(self) -> Script[tuple[K, Any]]:
        """Wait until a task has ended, and return its key and result.

        A worker's failure is raised, and does not say whose it is: `cancel`, and start again.
        """
        while not self._done:
            job, answer = yield from First(tuple(self._waiting))
            key, script = self._waiting.pop(job)
            yield from self._advance(key, script, answer)
        return self._done.popleft()

    def cancel(self) -> Script[None]:
        """Cancel all tasks; what they have cost is counted as discarded."""
        while self._waiting:
            job, (_, script) = self._waiting.popitem()
            script.close()
            yield from Cancel(job)
        self._done.clear()

    def _advance(self, key: K, script: Script[Any], answer: Any) -> Script[None]:
        """Send a task its answer, and start its next action as a job."""
        try:
            action = script.send(answer)
        except StopIteration as end:
            self._done.append((key, end.value))
            return
        job = yield from Start(action)
        self._waiting[job] = (key, script)


def gather(scripts: Sequence[Action[A] | Script[A]]) -> Script[list[A]]:
    """Run scripts concurrently; their results, in the order of the scripts.

    The first failure cancels the others and is raised.
    """
    tasks: TaskGroup[int] = TaskGroup()
    results: dict[int, A] = {}
    try:
        for number, script in enumerate(scripts):
            yield from tasks.start(number, script)
        while len(results) < len(scripts):
            number, result = yield from tasks.next_done()
            results[number] = result
    except (WorkerError, ContextLengthExceeded):
        yield from tasks.cancel()
        raise
    return [results[number] for number in range(len(scripts))]
