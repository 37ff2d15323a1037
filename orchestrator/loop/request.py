"""The request that the step loop answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.types import GREEDY, Limits, Message, Sampling


class Hurry:
    """A wish from outside that a request's thought ends."""

    def __init__(self) -> None:
        self.is_set = False
        self._wakes: set[Callable[[], object]] = set()

    def set(self) -> None:
        """Make the wish; once it is made, this changes nothing."""
        if self.is_set:
            return
        self.is_set = True
        for wake in list(self._wakes):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` once the wish is set, if that is in this block or before it."""
        self._wakes.add(wake)
        try:
            if self.is_set:
                wake()
            yield
        finally:
            self._wakes.remove(wake)


@dataclass(frozen=True, slots=True)
class Request:
    """The messages, and how they are answered.

    Logs, traces and every call have the `id`. `speculation` names the large worker's token-level
    method, of which no policy knows; None: the worker's default. Workers share cached prefixes
    within one `owner`. Requests of one `session` prefer one replica of each worker.
    The reader of the loop's events keeps `limits.deadline_s`. An answer that `remarks` has is
    followed by its remark, by the author `policy`. Once `hurry` is set, the thought ends, and the
    answer follows.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = GREEDY
    limits: Limits = Limits()  # noqa: RUF009 it is frozen
    speculation: str | None = None
    owner: str = ""
    session: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)
    hurry: Hurry | None = None
