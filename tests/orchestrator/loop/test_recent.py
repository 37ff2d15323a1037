"""What a policy's requests have cost lately."""

from __future__ import annotations

import pytest

from orchestrator.loop.actions import Classify, Generate, Write
from orchestrator.loop.events import ActionCompleted
from orchestrator.loop.recent import RecentCost
from orchestrator.loop.solve import solve
from orchestrator.types import Cost, Limits, Message, Sampling
from policies.specreason import SpecReason
from workers.scripted import Scripted

NOW = [100.0]


@pytest.fixture
def recent() -> RecentCost:
    NOW[0] = 100.0
    return RecentCost(half_life_s=10, clock=lambda: NOW[0])


def test_half_is_forgotten_in_a_half_life(recent: RecentCost) -> None:
    assert recent.total() == Cost()
    recent.add(Cost(small_ms=40, large_ms=80, judge_ms=8, small_tokens=20, large_tokens=4))
    assert recent.total() == Cost(40, 80, 8, 20, 4)
    NOW[0] += 10
    recent.add(Cost(large_tokens=1))
    assert recent.total() == Cost(20, 40, 4, 10, 3)
    NOW[0] += 1000
    assert recent.total().small_tokens == 0


STORY = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


@pytest.mark.asyncio
async def test_it_is_what_drafts_judgements_and_the_large_model_cost(recent: RecentCost) -> None:
    """Not the prompts, and not the answer that the small model writes."""
    drafts: list[ActionCompleted] = []
    judgements: list[ActionCompleted] = []
    written: list[ActionCompleted] = []
    for _ in range(2):
        events = solve(
            SpecReason(first_n=1, answer_by="small"),
            (Message("user", "what is 2+2+2?"),),
            {"small": Scripted(story=STORY), "large": Scripted(story=STORY)},
            request="r",
            sampling=Sampling(),
            limits=Limits(),
            recent=recent,
        )
        async for event in events:
            match event:
                case ActionCompleted(Generate(_, _, criteria)) if criteria.max_tokens:
                    drafts.append(event)
                case ActionCompleted(Classify()):
                    judgements.append(event)
                case ActionCompleted(Write("large")):
                    written.append(event)
        known = recent.total()
        assert known.small_tokens == sum(e.answer.usage.generated for e in drafts) > 0
        assert known.large_tokens == sum(e.answer.usage.generated for e in written) > 0
        assert known.small_ms == pytest.approx(sum(e.ms for e in drafts))
        assert known.judge_ms == pytest.approx(sum(e.ms for e in judgements))
        assert known.large_ms == pytest.approx(sum(e.ms for e in written))
