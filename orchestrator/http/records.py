"""A request and its answer as the store keeps them: the record, and the outcome for experiments."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Final

from orchestrator.experiments.outcome_log import MOST_TOKENS, Outcome, Status
from orchestrator.http.api import APIS
from orchestrator.http.ask import Choice
from orchestrator.http.body import Json
from orchestrator.http.errors import UNSUPPORTED_POLICY
from orchestrator.http.rendering import baton, usage
from orchestrator.loop.accumulator import CallSpan, ResponseAccumulator
from orchestrator.types import Message

OUTCOMES: Final = "outcomes"  # the store's stream of outcomes
OUTCOMES_OF: Final = "outcomes-of/"  # with a key's name: the stream of that key's requests
OUTCOMES_OF_KEPT: Final = 2000  # entries of that stream
REWARDS: Final = "rewards"  # a separate stream: many rewards of one answer displace no outcome
QUESTION_KEPT: Final = 2000  # characters of a question beside the messages


def record(
    choice: Choice, response: ResponseAccumulator, status: Status, error: Json | None = None
) -> Json:
    """Return everything about a request.

    If no text was made, the messages are left out, so that refused requests take no room from
    answered ones.
    """
    ask, plan = choice.ask, choice.plan
    nothing = status != "finished" and not (
        response.steps or response.thought or response.raw_answer
    )
    return {
        **baton(choice, response),
        "id": choice.trace_id,
        "object": "baton.trace",
        "request_id": choice.incoming.request_id,
        "choice": choice.index,
        "created": choice.incoming.created,
        "model": ask.policy.model,
        "parameters": plan.policy.model_dump(mode="json"),
        "overrides": list(plan.overrides),
        "run": plan.run,
        "sampling": asdict(choice.sampling),
        "limits": {**asdict(ask.limits), "budget": plan.policy.budget},
        "user": ask.labels.user,
        "metadata": ask.labels.metadata,
        "key": choice.incoming.key,
        "messages": [] if nothing else [_message(one) for one in choice.messages],
        "question": _beginning(choice.question),
        "steps": [step_json(response, index) for index in range(len(response.steps))],
        "calls": [call_json(call) for call in response.call_spans],
        "reasoning_content": response.thought,
        "answer": response.answer,
        "finish_reason": response.finish_reason if status == "finished" else None,
        "usage": usage(response) if status == "finished" else None,
        "status": status,
        "error": error,
    }


def step_json(response: ResponseAccumulator, index: int) -> Json:
    """Return a step with the time of its end, the indices of the calls that made it, and the
    origins of its tokens, if known."""
    moment = response.moments[index]
    made = {} if moment.provenance is None else {"provenance": asdict(moment.provenance)}
    when = {"at_ms": moment.at_ms, "calls": moment.calls}
    return {**asdict(response.steps[index]), **when, **made}


def call_json(call: CallSpan) -> Json:
    """Return a call of a worker, without empty fields and those for spans."""
    shown = asdict(replace(call, usage=None, finish=None))
    return {name: value for name, value in shown.items() if value is not None}


def _message(message: Message) -> Json:
    rest = {name: value for name, value in asdict(message).items() if value or name == "content"}
    return {"role": message.role, **rest}


def _beginning(text: str) -> str:
    return text if len(text) <= QUESTION_KEPT else f"{text[:QUESTION_KEPT]}…"


def outcome(
    choice: Choice, response: ResponseAccumulator, status: Status, error: Json | None = None
) -> Outcome:
    """Return a request's outcome, an event for experiments."""
    metrics, plan = response.metrics, choice.plan
    kind, code = ("", "") if error is None else (error["type"], error["code"])
    return Outcome(
        trace_id=choice.trace_id,
        at=time.time(),
        policy=plan.name,
        version=plan.version,
        experiment=plan.experiment,
        arm=plan.arm,
        overrides=plan.overrides,
        speculation=plan.decoding.get("large"),
        status=status,
        finish_reason=response.finish_reason if status == "finished" else None,
        refused=kind == "invalid_request_error" and code != UNSUPPORTED_POLICY,
        ms=response.ms,
        first_step_ms=response.first_step_ms,
        small_tokens=_count(metrics.small_tokens),
        large_tokens=_count(metrics.large_tokens),
        discarded_tokens=_count(metrics.discarded_tokens),
        prompt_tokens=_count(metrics.prefill_tokens),
        accepted=metrics.acceptance_rate,
        key=choice.incoming.key,
    )


def _count(tokens: int) -> int:
    """Return a sum of what workers counted within an outcome's bounds."""
    return min(max(0, tokens), MOST_TOKENS)


def trace_id_of(answer: str) -> str:
    """Return the trace id that an answer's id of any API holds; a trace id is returned as it is."""
    for api in APIS:
        if answer.startswith(api.id_prefix):
            return answer.removeprefix(api.id_prefix)
    return answer


def trace_name(trace_id: str) -> str:
    return f"trace/{trace_id}"
