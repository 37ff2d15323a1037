"""Runs with scripted workers, as recordings."""

from __future__ import annotations

from typing import Any

from deploy.evaluation.recording import RecordedRequest, Recording
from orchestrator.loop.events import Event, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling, Transcript
from policies.bild import BiLD
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.workers.scripted import Scripted

QUESTION = (Message("system", "Be brief."), Message("user", "2+2? \u2028 ü \ud800 </think>"))
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


async def record(
    policy: Policy,
    scores: Any = (9,),
    limits: Limits | None = None,
    context: int | None = None,
    **small: Any,
) -> tuple[Recording, list[Event]]:
    request = RecordedRequest(
        "r1",
        "specreason",
        QUESTION,
        policy.model_dump(mode="json"),
        Sampling(0.6, seed=3),
        limits or Limits(stop=("END",)),
    )
    workers = {
        "small": Scripted(story=SMALL, **small),
        "large": Scripted(story=LARGE, scores=scores, delay=0.0005, context=context),
    }
    asked = Request(request.request_id, request.messages, request.sampling, request.limits)
    stream = solve(policy, asked, workers)  # type: ignore[arg-type]
    events = [event async for event in stream]
    return Recording(request, tuple(e for e in events if not isinstance(e, TextDelta))), events


def first_good(transcript: Transcript) -> float:
    return 9.0 if len(transcript.thought) == 1 else 2.0


RUNS = [
    (SpecReason(), {"scores": first_good}),
    (SpecReason(threshold=0), {}),
    (SpecReason(scoring="likelihood"), {"scores": (0.5, 9.0)}),
    (SpecReason(budget=4), {}),
    (LargeOnly(), {"limits": Limits(max_tokens=5)}),
    (BiLD(rollback=1.0), {"scores": (2.0,)}),
]
