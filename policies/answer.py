"""Writing on to the end, which is how every policy finishes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from orchestrator.actions import Action, WorkerName, Write
from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.types import Span, Trace

REST = Span(1 << 30)
"""All that the budget leaves: the driver clips every span to it."""


def write_out(trace: Trace, *names: WorkerName) -> Generator[Action[Any], Any, Trace]:
    """Let the first worker write until the trace is done; the next takes over where one fails.

    It may take several spans: closing the thought ends one, and so does a worker that dies after
    part of its text was shown.
    """
    name, *others = names
    while not trace.done:
        try:
            trace = yield from Write(name, trace, REST)
        except (WorkerError, ContextLengthExceeded):
            if not others:
                raise
            name, *others = others
    return trace
