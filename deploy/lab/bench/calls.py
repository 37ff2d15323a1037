"""Workers side by side: what a call of each kind takes, and how many tokens a second they make.

The large workers of several deployment files take turns, so all see the machine at the same
moments. A prefix is new for every repetition; it has been read before the calls are timed, as in a
request whose first step is made. Streams continue with such a prefix, each with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
)
from orchestrator.worker import Call

WRITTEN: Final = 10  # tokens of a generation, and of a step that is verified
STEP: Final = "Then {0} and {1} give {2}, which is checked once more.\n\n"
QUERY: Final = LabelQuery(
    (Message("user", "Is the last step right? Answer with a digit from 0 to 9."),),
    "Score: ",
    tuple("0123456789"),
)
COLUMNS: list[Column] = [
    ("worker", lambda row: row["worker"]),
    ("prefix, tokens", lambda row: str(row["prefix"])),
    ("call", lambda row: row["call"]),
    ("ms", lambda row: f"{row['ms']:.1f}"),
    ("to the first", lambda row: f"{row['to_first']:.2f}x"),
    ("found cached, %", lambda row: f"{100 * row['cached']:.0f}"),
]
STREAM_COLUMNS: list[Column] = [
    ("worker", lambda row: row["worker"]),
    ("streams", lambda row: str(row["streams"])),
    ("tokens a second", lambda row: f"{row['per_s']:.1f}"),
    ("to the first", lambda row: f"{row['to_first']:.2f}x"),
]


@dataclass(frozen=True, slots=True)
class Timed:
    """One call: milliseconds, and what it cost."""

    ms: float
    usage: Usage


async def bench_calls(
    workers: Mapping[str, Any],
    prefixes: Sequence[int] = (100, 800),
    *,
    repeats: int = 20,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each worker, prefix (of about this many tokens) and kind of call; medians.

    The first repetition warms up and is not counted.
    """
    taken: dict[tuple[str, int, str], list[Timed]] = {}
    for size in prefixes:
        for turn in range(repeats + 1):
            tell(f"prefixes of {size} tokens, {turn} of {repeats}")
            for name, worker in workers.items():
                for kind, timed in (await _turn(worker, size, turn)).items():
                    if turn:
                        taken.setdefault((name, size, kind), []).append(timed)
    first = next(iter(workers))
    ms = {key: median(one.ms for one in all_timed) for key, all_timed in taken.items()}
    return [
        {
            "worker": name,
            "prefix": size,
            "call": kind,
            "ms": ms[name, size, kind],
            "to_first": ms[name, size, kind] / ms[first, size, kind],
            "cached": median(one.usage.cached / one.usage.prompt for one in all_timed),
        }
        for (name, size, kind), all_timed in taken.items()
    ]


async def bench_streams(
    workers: Mapping[str, Any],
    streams: Sequence[int],
    *,
    prefix: int = 100,
    tokens: int = 64,
    repeats: int = 3,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each worker and number of generations at once: tokens a second, all together.

    Each generation continues a prefix of about this many tokens and makes at most `tokens`. The
    median counts; the first repetition warms up and is not counted.
    """
    taken: dict[tuple[str, int], list[float]] = {}
    for count in streams:
        for turn in range(repeats + 1):
            tell(f"{count} streams, {turn} of {repeats}")
            for name, worker in workers.items():
                calls = [
                    Call(f"bench-{count}-{turn}-{n}", thought(worker, prefix, f"{turn}.{n}")[0])
                    for n in range(count)
                ]
                await asyncio.gather(*(generation(worker, call, 0) for call in calls))
                began = perf_counter()
                made = await asyncio.gather(*(generation(worker, call, tokens) for call in calls))
                seconds = perf_counter() - began
                if turn:
                    made_tokens = sum(one.usage.generated for one in made)
                    taken.setdefault((name, count), []).append(made_tokens / seconds)
    first, per_s = next(iter(workers)), {key: median(found) for key, found in taken.items()}
    return [
        {
            "worker": name,
            "streams": count,
            "per_s": per_s[name, count],
            "to_first": per_s[name, count] / per_s[first, count],
        }
        for name, count in taken
    ]


def thought(worker: Any, size: int, question: str) -> tuple[Transcript, Segment]:
    """A thought of about `size` tokens that no request has read before, and one more step of it."""
    transcript = Transcript((Message("user", f"Question {size}.{question}: what is 1 + 1?"),))
    length = number = 0
    while length < size:
        part = step(worker, number, question)
        transcript = transcript.extend(part)
        length, number = length + len(part.tokens), number + 1
    return transcript, step(worker, number, question, WRITTEN)


def step(worker: Any, number: int, question: str, most: int | None = None) -> Segment:
    """A step about a question, or the beginning of one."""
    ids = worker.tokenizer.encode(STEP.format(number, question, f"{number} and {question}"))[:most]
    text = worker.tokenizer.decode(ids)
    return Segment("small", text, ids, (0.0,) * len(ids), worker.tokenizer.hash)


async def _turn(worker: Any, size: int, turn: int) -> dict[str, Timed]:
    """One call of each kind after a thought that no request has read before."""
    transcript, part = thought(worker, size, str(turn))
    call = Call(f"bench-{size}-{turn}", transcript, "large")
    judged = Call(call.request, transcript.extend(part), "large")
    await generation(worker, call, 0)

    async def generate() -> Usage:
        return (await generation(worker, call, WRITTEN)).usage

    async def verify() -> Usage:
        return (await worker.verify(call, part, Sampling())).usage  # type: ignore[no-any-return]

    async def classify() -> Usage:
        return (await worker.classify(judged, QUERY)).usage  # type: ignore[no-any-return]

    kinds = {f"generate {WRITTEN}": generate, f"verify {WRITTEN}": verify, "classify": classify}
    return {kind: await timed(made) for kind, made in kinds.items()}


async def generation(worker: Any, call: Call, tokens: int, ignore_eos: bool = False) -> Generation:
    """Make at most this many tokens; exactly, if no end of turn counts."""
    criteria = StopCriteria(tokens, ignore_eos=ignore_eos)
    last = [item async for item in worker.generate(call, criteria, Sampling(), stream=False)][-1]
    assert isinstance(last, Generation)
    return last


async def timed(made: Callable[[], Awaitable[Usage]]) -> Timed:
    """Await a call with a clock."""
    began = perf_counter()
    usage = await made()
    return Timed((perf_counter() - began) * 1e3, usage)
