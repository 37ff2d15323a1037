"""Parts of every API's answers: usage, the `baton` object, the JSON itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from orchestrator.http.ask import Choice, RequestPlan
from orchestrator.http.body import Json
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.budget import spent


class Stripped:
    """`str.strip()` for a text that comes in pieces.

    `begun`: the text continues another, so white space at its start stays.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._begun, self._held = begun, ""

    def feed(self, text: str) -> str:
        """Return what is certain after this piece; white space at the end may be cut off later."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        certain = text.rstrip()
        self._begun |= bool(certain)
        self._held = text[len(certain) :]
        return certain


def usage(response: ResponseAccumulator) -> Json | None:
    """Return the usage as OpenAI counts it, without drafts and judge calls; None before the answer
    has ended."""
    if response.completed is None:
        return None
    transcript = response.completed.transcript
    return usage_of(response, spent(transcript), transcript.thought.tokens)


def usage_of(response: ResponseAccumulator, completion: int, thought: int) -> Json:
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
    """Add up the usage of all answers to a request; None if none has ended.

    A prompt counts once for its `each` consecutive answers (None: all answers have one prompt).
    """
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
    """Join the bodies of all answers to a request; `each` is as in `total_usage`.

    Each of several choices has its own `baton` object, and the body has the first one's.
    """
    first, *more = answers
    if not more:
        return first
    choices = [{**one["choices"][0], "baton": one["baton"]} for one in answers]
    total = total_usage((one["usage"] for one in answers), each)
    return {**first, "choices": choices, "usage": total}


def planned(plan: RequestPlan) -> Json:
    return {
        "policy": plan.name,
        "version": plan.version,
        "experiment": plan.experiment,
        "arm": plan.arm,
        "speculation": dict(plan.decoding),
    }


def baton(choice: Choice, response: ResponseAccumulator) -> Json:
    """Return the `baton` object; its `steps` are the chain's, with rejected drafts."""
    completed = response.completed
    shared = ("thought",) if response.thinking else ("advice", "answer")
    plan, metrics, prices = choice.plan, response.metrics, choice.ask.limits.prices
    warnings = choice.ask.labels.warnings
    tokens = metrics.small_tokens, metrics.large_tokens, metrics.prefill_tokens
    priced = {} if prices is None else {"cost": prices.of(*tokens)}
    warned = {"warnings": list(warnings)} if warnings else {}
    return {
        **warned,
        "trace_id": choice.trace_id,
        **planned(plan),
        # By worker and position of a draft: in how many rounds it was reached, and accepted.
        "acceptance": {
            worker: {"drafted_at": drafted, "accepted_at": accepted}
            for worker, (drafted, accepted) in response.acceptance.items()
        },
        # Failed calls: without them the answer might be another.
        "degraded": [asdict(failure) for failure in response.failures],
        "forced": completed is not None and completed.transcript.forced,
        "steps": [asdict(step) for step in response.steps if step.phase in shared],
        "answer_steps": [asdict(step) for step in response.steps if step.phase not in shared],
        "metrics": {**asdict(metrics), **priced},
    }
