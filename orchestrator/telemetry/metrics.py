"""Counters folded from events: one request's totals, and the process's Prometheus series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from time import perf_counter, process_time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from orchestrator.errors import DeadlineExceeded, InvalidRequest, Overloaded, WorkerError
from orchestrator.loop.actions import (
    Accept,
    Action,
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Reject,
    Start,
    Verify,
    WorkerName,
    Write,
)
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.types import Classification, Cost, Generation, Usage, Verification

WORKERS: tuple[WorkerName, ...] = ("small", "large")


class Tally:
    """The running totals of one request; `add` every ActionCompleted, read `metrics()` at any
    time."""

    def __init__(self) -> None:
        self._made = dict.fromkeys(WORKERS, 0)  # tokens generated, markers included
        self._drafted: dict[str, int] = dict.fromkeys(WORKERS, 0)  # of these, offered as drafts
        self._taken: dict[str, int] = dict.fromkeys(WORKERS, 0)  # tokens of accepted drafts
        self._cancelled = 0
        self._accepted = self._rejected = self._scored = self._judged = 0
        self._prompt: dict[str, int] = {}
        self._prefill = self._cached = self._passes = 0
        self._ms = {"small": 0.0, "large": 0.0, "classify": 0.0}
        self._jobs: dict[Job, Action[Any]] = {}

    def add(self, called: ActionCompleted) -> None:
        """Count one action and its answer; a failed one cost time only."""
        match called.action, called.answer:
            case Start(action), Job() as job:
                self._jobs[job] = action
            case First(), (Job() as job, answer):
                # The wait is not the job's own time, which its answer knows.
                action = self._jobs.pop(job)
                self._answered(action, answer, getattr(answer, "ms", 0.0))
            case Cancel(job), Usage() as usage:
                started = self._jobs.pop(job, None)
                if isinstance(started, Generate | Classify | Verify):
                    self._cost(started.worker, usage)
                    if isinstance(started, Generate):
                        self._made[started.worker] += usage.generated
                        self._cancelled += usage.generated
            case Accept(_, segment, score), _ if segment.author != "policy":
                self._accepted += segment.author == "small"  # the large model's is not judged
                self._scored += score is not None
                self._taken[segment.author] += len(segment.tokens)
            case Reject(segment), _:
                self._rejected += segment.author == "small"
            case action, answer:
                self._answered(action, answer, called.ms)

    def _answered(self, action: Action[Any], answer: Any, ms: float) -> None:
        match action, answer:
            case (
                (Generate(worker, transcript) | Write(worker, transcript)),
                Generation(segment, usage),
            ):
                tokens = len(segment.tokens)
                self._made[worker] += max(tokens, usage.generated)
                if isinstance(action, Generate):
                    self._drafted[worker] += tokens
                if not transcript.thought and not transcript.answer:
                    self._prompt.setdefault(worker, usage.prompt)
                self._cost(worker, usage)
                self._ms[worker] += ms
            case ((Classify(worker) | Verify(worker)), (Classification() | Verification())):
                self._judged += 1
                self._cost(worker, answer.usage)
                self._ms["classify"] += ms
            case ((Generate(worker) | Write(worker)), BaseException()):
                self._ms[worker] += ms
            case ((Classify() | Verify()), BaseException()):
                self._ms["classify"] += ms
            case _:
                pass

    def _cost(self, worker: WorkerName, usage: Usage) -> None:
        self._prefill += usage.prompt - usage.cached
        self._cached += usage.cached
        if worker == "large":
            self._passes += usage.passes

    def cost(self) -> Cost:
        """Time and tokens so far, for a policy that weighs them."""
        ms, made = self._ms, self._made
        return Cost(ms["small"], ms["large"], ms["classify"], made["small"], made["large"])

    def metrics(self, total_ms: float = 0.0) -> Metrics:
        """The totals so far."""
        # Accepted beyond what was drafted: the worker's own choice, taken from a Verification.
        chosen = {name: max(0, self._taken[name] - self._drafted[name]) for name in WORKERS}
        unused = sum(max(0, self._drafted[name] - self._taken[name]) for name in WORKERS)
        verdicts = self._accepted + self._rejected
        judged = verdicts if self._rejected or self._scored else 0
        return Metrics(
            small_tokens=self._made["small"] + chosen["small"],
            large_tokens=self._made["large"] + chosen["large"],
            discarded_tokens=unused + self._cancelled,
            judge_calls=self._judged,
            large_passes=self._passes,
            prompt_tokens=self._prompt.get("large", self._prompt.get("small", 0)),
            prefill_tokens=self._prefill,
            cached_tokens=self._cached,
            acceptance_rate=self._accepted / judged if judged else None,
            ms={**self._ms, "total": total_ms},
        )


def outcome(error: BaseException) -> str:
    """The name under which a request that ended by this error is counted."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    if isinstance(error, InvalidRequest):
        return "invalid"
    if isinstance(error, Overloaded):
        return "overloaded"
    if isinstance(error, WorkerError):
        return "unavailable"
    return "deadline" if isinstance(error, DeadlineExceeded) else "error"


class _Processor(Collector):
    """CPU seconds of this process, to a tenth: a replica that idles has nothing new to report."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "baton_orchestrator_cpu_seconds",
            "CPU seconds taken by replicas of the HTTP surface. Each runs one event loop: at one "
            "second a second it is full.",
            value=int(process_time() * 10) / 10,
        )


class ServiceMetrics:
    """The process's `baton_` series, on a registry of the caller's."""

    BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"baton_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(
                f"baton_{name}", text, ("policy",), registry=registry, buckets=self.BUCKETS
            )

        self.requests = counter(
            "requests",
            "Requests that ended, by policy and outcome: stop or length as told to the client; "
            "cancelled by the client or a shutdown; invalid, overloaded, unavailable (a worker), "
            "deadline, error (ours). Refusals before a policy starts are HTTP responses only.",
            "policy",
            "outcome",
        )
        self.steps = counter(
            "steps",
            "Steps of thoughts and answers, by author (small, large, policy) and whether they were "
            "accepted into the trace; a rewritten step counts once for each author.",
            "author",
            "accepted",
        )
        self.tokens = counter(
            "tokens",
            "Tokens generated by each worker for requests that ended, drafts and rewrites "
            "included.",
            "worker",
        )
        self.discarded = counter(
            "discarded_tokens",
            "Of baton_tokens_total, tokens that no trace accepted: drafts thrown away.",
        )
        self.judged = counter(
            "judge_calls",
            "Classify and Verify calls that a worker answered, for requests that ended.",
        )
        self.prefill = counter(
            "prefill_tokens",
            "Prompt tokens that workers computed because no cache held them, over all calls of "
            "requests that ended.",
        )
        self.cached = counter(
            "cached_tokens",
            "Prompt tokens that workers found in a cache, over all calls of requests that ended.",
        )
        self.passes = counter(
            "large_passes",
            "Forward passes of the large worker's model in which requests that ended took part, "
            "once for each request.",
        )
        self.lost = counter(
            "lost_calls",
            "Calls that were lost with a replica of the pool, or with the way to it, and made "
            "again.",
            "worker",
        )
        for worker in WORKERS:
            self.lost.labels(worker)
            self.tokens.labels(worker)
        self.latency = seconds(
            "request_seconds",
            "Wall time in seconds from the start of a request's policy to its end, whatever the "
            "outcome, by policy.",
        )
        self.first_text = seconds(
            "first_text_seconds",
            "Wall time in seconds from the start of a request's policy to its first accepted text, "
            "thought or answer, by policy; requests without any are left out.",
        )
        registry.register(_Processor())
        self.live = Gauge(
            "baton_live_requests", "Requests whose policy is running now.", registry=registry
        )

    async def watch(
        self, policy: str, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        """Pass a request's events through, counting them; closing this closes `events`."""
        began, ended, waiting = perf_counter(), "error", True
        tally = Tally()
        self.live.inc()
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, TextDelta) and waiting:
                        waiting = False
                        self.first_text.labels(policy).observe(perf_counter() - began)
                    elif isinstance(event, ActionCompleted):
                        tally.add(event)
                    elif isinstance(event, StepCompleted):
                        accepted = "true" if event.step.accepted else "false"
                        self.steps.labels(event.step.author, accepted).inc()
                    elif isinstance(event, RequestCompleted):
                        ended = event.transcript.finish
                    yield event
        except BaseException as error:
            ended = outcome(error) if ended == "error" else ended
            raise
        finally:
            self.live.dec()
            self.requests.labels(policy, ended).inc()
            self.latency.labels(policy).observe(perf_counter() - began)
            self._spent(tally.metrics())

    def _spent(self, spent: Metrics) -> None:
        # Requests that were cut short are charged too: their tokens were made all the same.
        self.tokens.labels("small").inc(spent.small_tokens)
        self.tokens.labels("large").inc(spent.large_tokens)
        self.discarded.inc(spent.discarded_tokens)
        self.judged.inc(spent.judge_calls)
        self.prefill.inc(max(0, spent.prefill_tokens))
        self.cached.inc(spent.cached_tokens)
        self.passes.inc(spent.large_passes)
