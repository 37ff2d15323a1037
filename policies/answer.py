"""Writing on to the end, which is how every policy finishes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.loop.actions import Action, WorkerName, Write
from orchestrator.types import StopCriteria, Transcript

REST = StopCriteria(1 << 30)
"""All that the budget leaves: the driver clips every span to it."""


def write_out(
    transcript: Transcript, *names: WorkerName
) -> Generator[Action[Any], Any, Transcript]:
    """Let the first worker write until the transcript is done; the next takes over where one fails.

    It may take several spans: closing the thought ends one, and so does a worker that dies after
    part of its text was shown.
    """
    name, *others = names
    while not transcript.done:
        try:
            transcript = yield from Write(name, transcript, REST)
        except (WorkerError, ContextLengthExceeded):
            if not others:
                raise
            name, *others = others
    return transcript
