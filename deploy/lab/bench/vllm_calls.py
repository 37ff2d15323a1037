"""A call through the worker over vLLM beside vLLM's own, and where the time of each goes.

Both take turns in one engine, on one thought, which has been read before. Ours is a call of the
worker; vLLM's own is `AsyncLLM.generate` with the same ids and vLLM's own metrics, which gives ids
and no text. What a call costs beside its passes is the time from its begin to the first pass and
from the last pass to its end. The machine's monotonic clock, which both processes read, gives the
places between. Ray's hop is apart (`round_trip`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any, Final
from unittest.mock import patch

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from deploy.lab.bench.calls import QUERY, WRITTEN, thought
from orchestrator.types import Sampling, StopCriteria
from orchestrator.worker import Call

OURS, THEIRS = "worker", "vLLM"
WRITES: Final = (f"generate {WRITTEN}", "step")
STEP_TOKENS: Final = 64  # of a step that ends by itself, at most
PLACES: Final = (
    "begun", "asked", "sent", "queued", "scheduled", "passed", "back", "processed", "ended",
)  # fmt: skip
STAGES: Final = (
    "prompt, parameters", "submit", "to the core", "wait", "passes", "to the worker",
    "vLLM's outputs", "text, end",
)  # fmt: skip
"""What lies between two of the `PLACES`; all but the passes is the cost of a call."""
COLUMNS: list[Column] = [
    ("call", lambda row: row["call"]),
    ("prefix, tokens", lambda row: str(row["prefix"])),
    ("by", lambda row: row["by"]),
    ("ms", lambda row: f"{row['ms']:.2f}"),
    ("beside passes", lambda row: f"{row['beside_ms']:.2f}"),
    ("to vLLM's", lambda row: f"{row['ratio']:.2f}x"),
    *((stage, lambda row, stage=stage: f"{row[stage]:.2f}") for stage in STAGES),
    ("loop in passes", lambda row: f"{row['loop_ms']:.2f}"),
    ("first output", lambda row: f"{row['first_ms']:.2f}"),
    ("read", lambda row: str(row["read"])),
]


@dataclass(slots=True)
class Trace:
    """When a call came to each place, in seconds, and what it asked for.

    The places of its first request are those up to "scheduled"; the others are of its last output.
    """

    at: dict[str, float] = field(default_factory=dict)
    first: float = 0.0
    loop: float = 0.0
    prompts: list[Any] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    tokens: int = 0
    read: int = 0

    def row(self) -> dict[str, float]:
        """Milliseconds of each stage, of all and of all but the passes."""
        places = [self.at[place] for place in PLACES]
        spans = [1e3 * (end - begin) for begin, end in pairwise(places)]
        stages = dict(zip(STAGES, spans, strict=True))
        ms = sum(spans)
        return stages | {
            "ms": ms,
            "beside_ms": ms - stages["passes"],
            "loop_ms": 1e3 * self.loop,
            "first_ms": 1e3 * (self.first - self.at["begun"]),
            "read": self.read,
        }


async def bench_vllm(
    worker: Any,
    prefixes: Sequence[int] = (100, 800),
    *,
    repeats: int = 40,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Two rows for each prefix and kind of call, ours and vLLM's own; medians.

    The first two repetitions warm up and are not counted. "step" ends by itself at a delimiter,
    "judge" is the call right after it.
    """
    taken: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    for size in prefixes:
        for turn in range(repeats + 2):
            tell(f"prefixes of {size} tokens, {turn} of {repeats + 2}")
            async for kind, by, trace in _turn(worker, size, turn):
                if turn > 1:
                    taken.setdefault((kind, size, by), []).append(trace.row())
    rows: list[Row] = []
    for (kind, size, by), traces in taken.items():
        row: Row = {"call": kind, "prefix": size, "by": by}
        row |= {name: median(one[name] for one in traces) for name in traces[0]}
        pairs = zip(traces, taken[kind, size, THEIRS], strict=True)
        row["ratio"] = median(one["beside_ms"] / other["beside_ms"] for one, other in pairs)
        rows.append(row)
    return rows


async def _turn(worker: Any, size: int, turn: int) -> AsyncGenerator[tuple[str, str, Trace], None]:
    """Each kind of call after a thought that no request has read before."""
    transcript, step = thought(worker, size, str(turn))
    call = Call(f"bench-{size}-{turn}", transcript, "large")
    judged = Call(call.request, transcript.extend(step), "large")
    engine = worker.backend.engine

    async def generate(criteria: StopCriteria) -> None:
        async for _ in worker.generate(call, criteria, Sampling(), stream=False):
            pass

    kinds: dict[str, Callable[[], Awaitable[Any]]] = {
        WRITES[0]: lambda: generate(StopCriteria(WRITTEN, ignore_eos=True)),
        WRITES[1]: lambda: generate(StopCriteria(STEP_TOKENS, ("\n\n",))),
        "judge": lambda: worker.classify(judged, QUERY),
        f"verify {WRITTEN}": lambda: worker.verify(call, step, Sampling()),
    }
    await generate(StopCriteria(0))
    for make in kinds.values():  # what both are to find cached is read
        await make()
    traces = {OURS: dict[str, Trace](), THEIRS: dict[str, Trace]()}
    for kind, make in kinds.items():
        with _traced(engine) as trace:
            await make()
        traces[OURS][kind] = trace
    for kind, ours in traces[OURS].items():
        prompt, limits = ours.prompts[0], _limits(ours, judges=kind not in WRITES)
        with _traced(engine) as trace, _own_metrics(engine):
            parameters = type(ours.parameters[0])(**limits)
            async for _ in engine.generate(prompt, parameters, f"own-{size}-{turn}-{kind}"):
                pass
        traces[THEIRS][kind] = trace
    for by, of_kind in traces.items():
        for kind, trace in of_kind.items():
            yield kind, by, trace


def _limits(ours: Trace, *, judges: bool) -> dict[str, Any]:
    """What vLLM's own call asks for: as many tokens, and the log-probabilities of a judge's."""
    given = ours.parameters[0]
    limits = {"max_tokens": ours.tokens, "temperature": 0.0, "ignore_eos": True}
    limits |= {"output_kind": given.output_kind, "detokenize": False}
    if judges:
        names = ("logprobs", "prompt_logprobs", "flat_logprobs", "extra_args")
        limits |= {name: getattr(given, name) for name in names}
        limits["skip_reading_prefix_cache"] = given.skip_reading_prefix_cache
    return limits


@contextmanager
def _own_metrics(engine: Any) -> Iterator[None]:
    """vLLM's own metrics are counted, as they are unless switched off."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    manager = engine.logger_manager
    if not hasattr(engine, "bench_metrics"):
        engine.bench_metrics = PrometheusStatLogger(engine.vllm_config, manager.engine_indexes)
    with patch.object(manager, "stat_loggers", [*manager.stat_loggers, engine.bench_metrics]):
        yield


@contextmanager
def _traced(engine: Any) -> Iterator[Trace]:
    """The trace of a call that is made within."""
    trace = Trace()
    generate, add = engine.generate, engine.add_request
    process = engine.output_processor.process_outputs

    async def generated(prompt: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        trace.prompts.append(prompt)
        trace.parameters.append(parameters)
        trace.at.setdefault("asked", monotonic())
        async for output in generate(prompt, parameters, *args, **kwargs):
            trace.tokens += len(output.outputs[0].token_ids)
            trace.read = len(output.prompt_token_ids) - output.num_cached_tokens
            given = monotonic()
            trace.first = trace.first or given
            yield output
            trace.loop += monotonic() - given

    async def added(*args: Any, **kwargs: Any) -> Any:
        queue = await add(*args, **kwargs)
        trace.at.setdefault("sent", monotonic())
        return queue

    def processed(outputs: Any, timestamp: float, *args: Any, **kwargs: Any) -> Any:
        if outputs:
            for event in outputs[0].events or ():
                trace.at.setdefault(event.type.name.lower(), event.timestamp)
            trace.at |= {"passed": timestamp, "back": monotonic()}
        made = process(outputs, timestamp, *args, **kwargs)
        if outputs:
            trace.at["processed"] = monotonic()
        return made

    with (
        patch.object(engine, "generate", generated),
        patch.object(engine, "add_request", added),
        patch.object(engine.output_processor, "process_outputs", processed),
    ):
        trace.at["begun"] = monotonic()
        yield trace
        trace.at["ended"] = monotonic()
