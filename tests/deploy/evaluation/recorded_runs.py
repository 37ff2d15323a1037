"""Runs with scripted workers, as recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.evaluation.recording import RecordedWorker, Recording, dumps, parse
from orchestrator.loop.events import Event, RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling, Transcript
from policies import POLICIES
from policies.bild import BiLD
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.workers.scripted import Scripted

QUESTION = (Message("system", "Be brief."), Message("user", "2+2? \u2028 ü \ud800 </think>"))
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


async def recorded(
    policy: Policy, request: Request, workers: Any
) -> tuple[Recording, list[Event], RequestCompleted]:
    """Return a request's recording after it was written and read, its events, and its end."""
    noting = {name: RecordedWorker(name, worker) for name, worker in workers.items()}
    events = [event async for event in solve(policy, request, noting)]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert not any(worker.failed for worker in noting.values())
    (name,) = (name for name, kind in POLICIES.items() if type(policy) is kind)
    return read_again(Recording.of(request, name, policy, ended, noting.values())), events, ended


def read_again(recording: Recording) -> Recording:
    head, *rows = map(json.loads, dumps(recording).splitlines())
    return parse(Path("recording.jsonl"), head, rows)


async def record(
    policy: Policy,
    scores: Any = (9,),
    limits: Limits | None = None,
    context: int | None = None,
    **small: Any,
) -> tuple[Recording, list[Event], RequestCompleted]:
    workers = {
        "small": Scripted(story=SMALL, **small),
        "large": Scripted(story=LARGE, scores=scores, delay=0.0005, context=context),
    }
    limits = limits or Limits(stop=("END",))
    return await recorded(policy, Request("r1", QUESTION, Sampling(0.6, seed=3), limits), workers)


def first_good(transcript: Transcript) -> float:
    return 9.0 if len(transcript.thought) == 1 else 2.0


RUNS = [
    (SpecReason(), {"scores": first_good}),
    (SpecReason(threshold=0), {}),
    (SpecReason(scoring="likelihood"), {"scores": (0.5, 9.0)}),
    (SpecReason(budget=4), {}),
    (LargeOnly(), {"limits": Limits(max_tokens=5)}),
    (LargeOnly(), {"limits": Limits(stop=("six",))}),
    (BiLD(rollback=1.0), {"scores": (2.0,)}),
]
