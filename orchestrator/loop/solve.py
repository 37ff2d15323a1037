"""THE STEP LOOP: a policy yields actions, workers carry them out, accepted text streams out.

The loop is *draft, verify, commit* (SpecReason, arXiv 2504.07891, section 4.1), except that the
policy decides which worker drafts, and which verifies and how. Four objects share the work:

- `PolicyRunner` runs the policy's generator and builds the transcript, without I/O. It turns
  results into events, and adds each event once to the response (`ResponseAccumulator`).
- `Budget` charges accepted tokens to the request: `clip` before a generation, `commit` after an
  accepted segment, which also decides whether the phase has ended.
- `Spending` caps the large model's tokens and cost in the thought.
- `Executor` alone calls workers. It streams the text of a `Write`.

Both workers prefill the prompt first. The policy's first action runs beside the longer prefill, and
its events come after both (`PromptsRead`).

A transcript is a thought and an answer. If no model of the policy marks its thought
(`Generation.thinks` of the prefills), it is an answer alone, and the steps are the answer's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import perf_counter

from orchestrator.errors import ConfigError
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, PromptsRead
from orchestrator.loop.executor import Executor
from orchestrator.loop.policy import Policy
from orchestrator.loop.policy_runner import PolicyRunner
from orchestrator.loop.request import Request
from orchestrator.worker import Worker


async def solve(
    policy: Policy,
    request: Request,
    workers: Mapping[WorkerName, Worker],
    response: ResponseAccumulator | None = None,
) -> AsyncGenerator[Event, None]:
    """Answer a request by `policy`: yield events as they happen, last one `RequestCompleted`.

    Every event is added to `response` before it is yielded. Closing the generator, or cancelling
    the task that reads it, stops everything it started.

    Raises:
        ConfigError: a worker that the policy needs is not in `workers`.
        InvalidRequest: a method that the worker does not offer, a `max_cost` without prices;
            ContextLengthExceeded for too long a prompt.
        Unsupported: a worker cannot do what the policy needs.
        WorkerError: a worker failed and the policy did not catch it.
    """
    missing = sorted(policy.called - workers.keys())
    if missing:
        raise ConfigError(f"the policy needs a worker that is not there: {', '.join(missing)}")
    began = perf_counter()
    runner = PolicyRunner(policy, request.messages, request.limits, response)
    executor = Executor(workers, request, runner.budget)
    try:
        runner.begin(await executor.prefill(runner.prefills()))
        if runner.spending.capped:  # the prompts' cost counts before the policy spends anything
            for event in runner.on_result(PromptsRead(await executor.prefilled())):
                yield event
        # *** The policy yields an action, the executor carries it out, the policy gets the result.
        while (action := runner.next_action()) is not None:
            async with aclosing(executor.perform(action)) as items:
                async for item in items:  # the text of a Write as it is made; then the result
                    for event in runner.on_result(item):
                        yield event
                    if runner.stopped:  # by a stop string that an earlier segment began
                        executor.stop_writing()
            if request.hurry is not None and request.hurry.is_set:
                for event in runner.answer_now():
                    yield event
        for event in runner.rest_of_text():
            yield event
        for event in runner.remark(request.remarks):
            yield event
        yield runner.complete((perf_counter() - began) * 1000)
    finally:
        await executor.close()
        runner.close()
