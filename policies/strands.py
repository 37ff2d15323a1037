"""Scripts that run side by side within one policy, each waiting for its own answers.

    strands = Strands()
    yield from strands.start("draft", Generate("small", transcript, span))
    yield from strands.start("score", grade(transcript, draft, ...))
    key, value = yield from strands.ended()   # whichever comes first

A strand is any part of a script whose actions can be started as jobs. All of it is told to the
driver by Start, First and Cancel, so it replays like everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.loop.actions import Action, Cancel, First, Job, Start
from policies.steps import A, Asking

K = TypeVar("K")


class Strands(Generic[K]):
    """Strands in progress, each under a key of the caller's that comes back with its result."""

    def __init__(self) -> None:
        self._waiting: dict[Job, tuple[K, Generator[Action[Any], Any, Any]]] = {}
        self._over: deque[tuple[K, Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._over)

    def start(self, key: K, script: Action[Any] | Asking[Any]) -> Asking[None]:
        """Begin a strand; nothing is waited for."""
        yield from self._go_on(key, iter(script), None)

    def ended(self) -> Asking[tuple[K, Any]]:
        """Go on with whatever is answered until a strand has come to its end.

        A worker's failure is raised, and does not say whose it is: `stop` and begin anew.
        """
        while not self._over:
            job, answer = yield from First(tuple(self._waiting))
            key, script = self._waiting.pop(job)
            yield from self._go_on(key, script, answer)
        return self._over.popleft()

    def stop(self) -> Asking[None]:
        """Cancel them all; what they have cost is counted as discarded."""
        while self._waiting:
            job, (_, script) = self._waiting.popitem()
            script.close()
            yield from Cancel(job)
        self._over.clear()

    def _go_on(self, key: K, script: Generator[Action[Any], Any, Any], answer: Any) -> Asking[None]:
        try:
            action = script.send(answer)
        except StopIteration as end:
            self._over.append((key, end.value))
            return
        job = yield from Start(action)
        self._waiting[job] = (key, script)


def together(scripts: Sequence[Action[A] | Asking[A]]) -> Asking[list[A]]:
    """Run scripts side by side; their results, in the order of the scripts.

    The first failure cancels the others and is raised.
    """
    strands: Strands[int] = Strands()
    for number, script in enumerate(scripts):
        yield from strands.start(number, script)
    results: dict[int, A] = {}
    try:
        while len(results) < len(scripts):
            number, result = yield from strands.ended()
            results[number] = result
    except (WorkerError, ContextLengthExceeded):
        yield from strands.stop()
        raise
    return [results[number] for number in range(len(scripts))]
