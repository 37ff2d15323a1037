"""Calls that are timed, after thoughts that no request has read before."""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter
from typing import Any, Final

from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call

WRITTEN: Final = 10  # tokens of a generation, and of a step that is verified
STEP: Final = "Then {0} and {1} give {2}, which is checked once more.\n\n"
QUERY: Final = LabelQuery(
    (Message("user", "Is the last step right? Answer with a digit from 0 to 9."),),
    "Score: ",
    tuple("0123456789"),
)


async def tokens_per_s(
    worker: Any, streams: int, *, prefix: int, tokens: int, repeats: int
) -> float:
    """Tokens a second of this many generations at once, all together.

    Each generation continues a prefix of about this many tokens and makes at most `tokens`. The
    median counts; the first repetition warms up and is not counted.
    """
    taken = []
    for turn in range(repeats + 1):
        calls = [
            Call(f"bench-{streams}-{turn}-{n}", thought(worker, prefix, f"{turn}.{n}")[0])
            for n in range(streams)
        ]
        await asyncio.gather(*(generation(worker, call, 0) for call in calls))
        began = perf_counter()
        made = await asyncio.gather(*(generation(worker, call, tokens) for call in calls))
        taken.append(sum(one.usage.generated for one in made) / (perf_counter() - began))
    return median(taken[1:])


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


async def generation(worker: Any, call: Call, tokens: int, ignore_eos: bool = False) -> Generation:
    """Make at most this many tokens; exactly, if no end of turn counts."""
    criteria = StopCriteria(tokens, ignore_eos=ignore_eos)
    last = [item async for item in worker.generate(call, criteria, Sampling(), stream=False)][-1]
    assert isinstance(last, Generation)
    return last
