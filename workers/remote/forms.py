"""Answers that a server constrains to a form: the request fields, and the check of the answer."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import Unsupported, WorkerError
from orchestrator.grammar import holds, is_free
from orchestrator.types import Constraint
from orchestrator.worker import Call
from workers.remote.dialects.openai import OpenAI


def constraint_fields(call: Call, dialect: OpenAI) -> dict[str, Any]:
    """Return the request fields for the call's constraint.

    Raises:
        Unsupported: no field expresses the constraint, or the answer has begun already.
    """
    constraint = call.constraint
    if constraint is None or is_free(constraint):
        return {}
    if call.transcript.reply.strip():
        raise Unsupported("going on within an answer that is held to a grammar")
    if (fields := dialect.form_fields(constraint)) is None:
        raise Unsupported(
            "an answer held to a grammar or to calls of tools, which no server is asked for"
        )
    return fields


def check_held(constraint: Constraint | None, text: str, name: str) -> None:
    """Refuse (`WorkerError`) a whole answer that does not match its constraint."""
    if constraint is not None and not is_free(constraint) and not holds(constraint, text):
        raise WorkerError(
            f"{name} did not hold its answer to the form that was asked for: check that it takes "
            "structured_outputs (vLLM) or json_schema (llama.cpp)"
        )
