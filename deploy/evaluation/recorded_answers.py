"""Recorded answers, found by the call they answer, whatever the order.

A generation that was gated by the entropy of its first token (`StopCriteria.max_entropy`) answers
the same call under other gates too, as far as its text reaches: what was written shows what would
have been withheld.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from orchestrator.loop.actions import Action, Classify, Generate, Verify, Write
from orchestrator.loop.events import ActionCompleted, Event
from orchestrator.types import Generation, Usage

GATED = 0.0  # stands for any gate in the key of a call


def answered_calls(events: Iterable[Event]) -> Iterator[ActionCompleted]:
    """The calls of workers with their answers."""
    for event in events:
        match event:
            case ActionCompleted(Generate() | Write() | Classify() | Verify()):
                yield event


class RecordedAnswers:
    """The answers of one recording; each is given once."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._known: dict[Action[Any], deque[ActionCompleted]] = {}
        for called in answered_calls(events):
            self._known.setdefault(_key(called.action), deque()).append(called)

    def take(self, action: Action[Any]) -> ActionCompleted | None:
        """An answer to this call; None where the recording has none left."""
        known = self._known.get(_key(action), deque())
        for index, called in enumerate(known):
            if (answer := _fitting(called, action)) is not None:
                del known[index]
                return answer
        return None


def _gate(action: Action[Any]) -> float | None:
    return action.criteria.max_entropy if isinstance(action, Generate) else None


def _key(action: Action[Any]) -> Action[Any]:
    if isinstance(action, Generate) and action.criteria.max_entropy is not None:
        return replace(action, criteria=replace(action.criteria, max_entropy=GATED))
    return action


def _fitting(called: ActionCompleted, action: Action[Any]) -> ActionCompleted | None:
    """The recorded answer as the gate of `action` would have let it pass; None: unknown."""
    gate, answer = _gate(action), called.answer
    if gate == _gate(called.action):
        return called
    if not isinstance(answer, Generation):
        return replace(called, action=action)  # a failure, which has nothing to do with gates
    if gate is None or answer.entropy is None:
        return None
    if answer.entropy > gate:
        # The prompt was read and nothing written. How long that took was not measured: no longer.
        silent = replace(answer.segment, text="", tokens=(), logprobs=(), finish="doubt")
        usage = Usage(answer.usage.prompt, answer.usage.cached, 0, min(1, answer.usage.passes))
        return replace(called, action=action, answer=replace(answer, segment=silent, usage=usage))
    recorded = _gate(called.action)
    if recorded is None or answer.entropy > recorded:
        return None  # withheld then, wanted now
    return replace(called, action=action)
