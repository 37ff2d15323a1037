"""Recorded answers, found by the call they answer, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.loop.actions import Action, Classify, Generate, Verify, Write
from orchestrator.loop.events import ActionCompleted, Event


def answered_calls(events: Iterable[Event]) -> Iterator[ActionCompleted]:
    """Yield the calls of workers, with their answers."""
    for event in events:
        match event:
            case ActionCompleted(Generate() | Write() | Classify() | Verify()):
                yield event


class RecordedAnswers:
    """The answers of one recording; each is returned once."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._known: dict[Action[Any], deque[ActionCompleted]] = {}
        for called in answered_calls(events):
            self._known.setdefault(called.action, deque()).append(called)

    def take(self, action: Action[Any]) -> ActionCompleted | None:
        """Return an answer to this call; None if the recording has none left."""
        known = self._known.get(action)
        return known.popleft() if known else None
