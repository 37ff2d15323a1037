"""A request and its response as JSON: for the client, for the store, and as an outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any, Final

from orchestrator.http.call_reader import AnswerReader, CallPiece, Piece, read_answer
from orchestrator.http.context import RequestContext
from orchestrator.http.schemas import COMPLETION, RESPONSE, TEXT_COMPLETION
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.budget import spent
from orchestrator.loop.events import Event, TextDelta
from orchestrator.loop.timeline import CallSpan
from orchestrator.types import Message

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream."""
OUTCOMES: Final = "outcomes"
"""The store's stream of outcomes."""
OUTCOMES_OF: Final = "outcomes-of/"
"""With a key's name, that of the outcomes of its own requests."""
OUTCOMES_OF_KEPT: Final = 2000
"""Outcomes that stay in it."""
REWARDS: Final = "rewards"
"""That of rewards, apart: many judgements of one answer push no outcome out of the list."""
BRIEF: Final = 2000
"""Characters of a text of which the beginning is enough."""
LAST: Final = 8
"""Messages that say what a conversation had come to."""

Json = dict[str, Any]


class Stripped:
    """`str.strip()` for a text that comes in pieces: white space waits for what follows it.

    `begun`: it goes on with another text, so the white space before it stays.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._begun, self._held = begun, ""

    def feed(self, text: str) -> str:
        """The part of the text that is certain after this piece, "" for none."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        certain = text.rstrip()
        self._begun |= bool(certain)
        self._held = text[len(certain) :]
        return certain


def deltas(
    events: Iterable[Event], answer: AnswerReader, strip: Stripped, thought_in: Sequence[str]
) -> Iterator[Json]:
    """The accepted text in `events` as OpenAI deltas; neighbours of one phase share one.

    `thought_in` names the fields that hold the thought.
    """
    texts = [event for event in events if isinstance(event, TextDelta)]
    for phase, group in groupby(texts, key=lambda text: text.phase):
        text = "".join(item.text for item in group)
        if phase == "thought":
            yield dict.fromkeys(thought_in, text)
        else:
            yield from answer_deltas(answer.feed(text), strip)


def answer_deltas(pieces: Iterable[Piece], strip: Stripped) -> Iterator[Json]:
    """Pieces of an answer as OpenAI deltas."""
    for piece in pieces:
        if isinstance(piece, CallPiece):
            yield {"tool_calls": [_call_delta(piece)]}
        elif text := strip.feed(piece):
            yield {"content": text}


def _call_delta(piece: CallPiece) -> Json:
    if piece.name is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def chunk(
    context: RequestContext,
    delta: Json,
    finish: str | None = None,
    logprobs: Json | None = None,
) -> Json:
    choice = {
        "index": context.index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish,
    }
    made = {**head(context, "chat.completion.chunk"), "choices": [choice]}
    return {**made, "usage": None} if context.body.wants_usage else made


def running_usage(response: ResponseAccumulator) -> Json:
    """The usage so far: the tokens of what was shown."""
    thought, answer = response.shown["thought"], response.shown["answer"]
    return _usage(response, thought + answer, thought)


def usage_chunk(context: RequestContext, responses: Sequence[ResponseAccumulator]) -> Json:
    total = total_usage(map(usage, responses))
    return {**head(context, "chat.completion.chunk"), "choices": [], "usage": total}


def completion(
    context: RequestContext,
    response: ResponseAccumulator,
    thought_in: Sequence[str],
    logprobs: Json | None = None,
) -> Json:
    """The whole answer; `thought_in` names the fields that hold the thought."""
    text, calls = read_answer(context, response)
    message: Json = {
        "role": "assistant",
        "content": text or None if calls else text,
        **dict.fromkeys(thought_in, response.thought),
        "refusal": None,
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    choice = {
        "index": context.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": response.finish_reason,
    }
    return {
        **head(context, "chat.completion"),
        "choices": [choice],
        "usage": usage(response),
        "baton": baton(context, response),
    }


def usage(response: ResponseAccumulator) -> Json | None:
    """As OpenAI counts: accepted tokens and the ends of thought and turn that a model wrote;
    drafts and judge calls never."""
    if response.completed is None:
        return None
    transcript = response.completed.transcript
    return _usage(response, spent(transcript), transcript.thought.tokens)


def _usage(response: ResponseAccumulator, completion: int, thought: int) -> Json:
    prompt = response.prompt.prompt
    return _counted(prompt, min(response.prompt.cached, prompt), completion, thought)


def _counted(prompt: int, cached: int, completion: int, thought: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def total_usage(usages: Iterable[Json | None], each: int | None = None) -> Json | None:
    """The usage of all answers to a request: a prompt counts once, however many answers it has
    (`each`, one after the other; None: all of them)."""
    known = [one for one in usages if one is not None]
    if not known:
        return None
    firsts = known[::each] if each else known[:1]
    details = [one["completion_tokens_details"]["reasoning_tokens"] for one in known]
    cached = [one["prompt_tokens_details"]["cached_tokens"] for one in firsts]
    completion = sum(one["completion_tokens"] for one in known)
    prompt = sum(one["prompt_tokens"] for one in firsts)
    return _counted(prompt, sum(cached), completion, sum(details))


def joined(answers: Sequence[Json], each: int | None = None) -> Json:
    """The bodies of all answers to a request as one: each of several choices has the extra object
    of its own, and the body has the first one's. `each`: as in `total_usage`."""
    first, *more = answers
    if not more:
        return first
    choices = [{**one["choices"][0], "baton": one["baton"]} for one in answers]
    total = total_usage((one["usage"] for one in answers), each)
    return {**first, "choices": choices, "usage": total}


def baton(context: RequestContext, response: ResponseAccumulator) -> Json:
    """The extra object: `steps` are the chain's, rejected drafts among them."""
    completed = response.completed
    shared = "thought" if response.thinking else "answer"
    metrics, prices = response.metrics, context.limits.prices
    priced = {} if prices is None else {"cost": prices.of(metrics)}
    warned = {"warnings": list(context.body.warnings)} if context.body.warnings else {}
    return {
        **warned,
        "trace_id": context.trace_id,
        "policy": context.policy_name,
        "version": context.version,
        "experiment": context.experiment,
        "arm": context.arm,
        "speculation": dict(context.decoding),
        "acceptance": {
            worker: {"drafted_at": drafted, "accepted_at": accepted}
            for worker, (drafted, accepted) in response.acceptance.items()
        },
        # What the policy asked for and did not get: the answer may differ from an undisturbed one.
        "degraded": [asdict(failure) for failure in response.failures],
        "forced": completed is not None and completed.transcript.forced,
        "steps": [asdict(step) for step in response.steps if step.phase == shared],
        "answer_steps": [asdict(step) for step in response.steps if step.phase != shared],
        "metrics": {**asdict(metrics), **priced},
    }


def record(
    context: RequestContext,
    response: ResponseAccumulator,
    status: str,
    error: Json | None = None,
) -> Json:
    """Everything about a request; `status` is finished, failed or cancelled.

    Of a request that came to nothing the beginnings of its last messages are kept: what is refused
    takes no room from what is answered.
    """
    nothing = status != "finished" and not (
        response.steps or response.thought or response.raw_answer
    )
    messages = context.messages[-LAST:] if nothing else context.messages
    return {
        **baton(context, response),
        "id": context.trace_id,
        "object": "baton.trace",
        "request_id": context.request_id,
        "choice": context.index,
        "created": context.created,
        "model": context.body.model,
        "parameters": context.policy.model_dump(mode="json"),
        "overrides": list(context.overrides),
        "run": context.run,
        "sampling": asdict(context.sampling),
        "limits": {**asdict(context.limits), "budget": context.policy.budget},
        "user": context.body.user,
        "metadata": context.body.metadata,
        "key": context.key,
        "messages": [_message(message, brief=nothing) for message in messages],
        "brief": nothing,
        "question": _brief(context.question),
        "steps": [step_json(response, index) for index in range(len(response.steps))],
        "calls": [call_json(call) for call in response.timeline.calls],
        "reasoning_content": response.thought,
        "answer": response.answer,
        "finish_reason": response.finish_reason if status == "finished" else None,
        "usage": usage(response) if status == "finished" else None,
        "status": status,
        "error": error,
    }


def step_json(response: ResponseAccumulator, index: int) -> Json:
    """A step with the time when it was complete, the calls that made it by their index, and where
    its tokens came from, if that is known."""
    moment = response.timeline.steps[index]
    made = {} if moment.provenance is None else {"provenance": asdict(moment.provenance)}
    when = {"at_ms": moment.at_ms, "calls": moment.calls}
    return {**asdict(response.steps[index]), **when, **made}


def call_json(call: CallSpan) -> Json:
    """A call of a worker, without what it does not have, and what spans alone tell."""
    shown = asdict(replace(call, usage=None, finish=None))
    return {name: value for name, value in shown.items() if value is not None}


def _message(message: Message, *, brief: bool) -> Json:
    """A message, with those of its other fields that say something."""
    if brief:
        message = replace(
            message,
            content=_brief(message.content),
            reasoning=_brief(message.reasoning),
            tokens=message.tokens and message.tokens[:BRIEF],
            calls=(),
        )
    rest = {name: value for name, value in asdict(message).items() if value or name == "content"}
    return {"role": message.role, **rest}


def _brief(text: str) -> str:
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}\u2026"


def outcome(
    context: RequestContext,
    response: ResponseAccumulator,
    status: str,
    error: Json | None = None,
) -> Json:
    """A request that ended, as an event for experiments; times in ms, None for what never came.

    `status` is finished, failed or cancelled; what failed and can never be answered, whose `error`
    is the request's own, is `refused`. `overrides` names the parameters that the request
    set itself: where there are any, it says little about the version. `accepted` is the share of
    judged drafts that stayed, `prompt_tokens` are those computed. `speculation` is what the large
    worker decoded with, marked where it is lossy.
    """
    metrics = response.metrics
    return {
        "kind": "outcome",
        "trace_id": context.trace_id,
        "at": time.time(),
        "policy": context.policy_name,
        "version": context.version,
        "speculation": context.decoding.get("large"),
        "overrides": list(context.overrides),
        "experiment": context.experiment,
        "arm": context.arm,
        "status": status,
        "refused": error is not None and error["type"] == "invalid_request_error",
        "finish_reason": response.finish_reason if status == "finished" else None,
        "ms": response.ms,
        "first_step_ms": response.first_step_ms,
        "small_tokens": metrics.small_tokens,
        "large_tokens": metrics.large_tokens,
        "discarded_tokens": metrics.discarded_tokens,
        "prompt_tokens": metrics.prefill_tokens,
        "accepted": metrics.acceptance_rate,
        "key": context.key,
    }


def trace_id_of(answer: str) -> str:
    """The trace id in the id of an answer of any form; a trace id is its own."""
    for form in (COMPLETION, TEXT_COMPLETION, RESPONSE):
        if answer.startswith(form):
            return answer.removeprefix(form)
    return answer


def trace_name(trace_id: str) -> str:
    """Where the store keeps a request's record."""
    return f"trace/{trace_id}"


def dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sse(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


def head(context: RequestContext, kind: str) -> Json:
    """What every completion and every chunk of one begins with; `kind` is OpenAI's."""
    return {
        "id": context.answer_id,
        "object": kind,
        "created": context.created,
        "model": context.body.model,
    }
