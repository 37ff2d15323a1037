"""Write to the end of the transcript: how every policy finishes."""

from __future__ import annotations

from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.loop.actions import Script, WorkerName, Write
from orchestrator.types import StopCriteria, Transcript

REST = StopCriteria(1 << 30)
"""No limit but the budget: the driver caps every call at the tokens that are left."""


def write_out(transcript: Transcript, *names: WorkerName) -> Script[Transcript]:
    """Let the first worker write until the transcript is done; the next takes over if it fails.

    It may take several calls: one ends where the thought does, and so does one whose worker fails
    after part of its text was streamed.
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
