"""What the large model may cost: the rules, and every policy within them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ConfigError, InvalidRequest, Spent
from orchestrator.loop.actions import Accept, Classify, Generate, Verify, Write
from orchestrator.loop.events import ActionCompleted, Event, Metrics, RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.spending import REST, Spending
from orchestrator.types import (
    Generation,
    Limits,
    Segment,
    StopCriteria,
    TokenPrices,
    Transcript,
)
from policies import POLICIES
from tests.orchestrator.loop.solving import QUESTION, heard, replays
from tests.workers.scripted import Say, Scripted, words

TRACE = Transcript(QUESTION)
STEP = StopCriteria(512, until=("\n\n",))
PRICES = TokenPrices(small=1, large=10, prompt=0)


def used(small: int = 0, large: int = 0, prompt: int = 0) -> Metrics:
    return replace(Metrics(), small_tokens=small, large_tokens=large, prefill_tokens=prompt)


def test_what_is_left_of_tokens() -> None:
    assert Spending().left(used(large=10**9)) == inf
    assert Spending(tokens=50).left(used(small=99, large=20)) == 30


def test_what_is_left_of_money() -> None:
    spending = Spending(cost=1e-3, prices=PRICES)
    assert int(spending.left(used())) == 100
    assert int(spending.left(used(small=500, large=20))) == 30
    assert int(spending.left(used(small=999))) == 0
    assert spending.left(used(small=2000)) == 0
    assert Spending(cost=1e-3, prices=TokenPrices(small=1)).left(used()) == inf  # large is free
    assert Spending(cost=1e-3, prices=TokenPrices(small=1)).left(used(small=1000)) == 0


@pytest.mark.parametrize(
    "action",
    [
        Generate("large", TRACE, STEP),
        Classify("large", TRACE, (), "", ("0", "1")),
        Verify("large", TRACE, Segment("small", "a")),
    ],
    ids=lambda action: type(action).__name__,
)
def test_once_spent_the_large_model_is_not_asked(action: Any) -> None:
    assert Spending(tokens=1).allow(action, inf) is action
    with pytest.raises(Spent):
        Spending(tokens=1).allow(action, 3)  # a character may have four


def test_once_spent_the_small_model_writes_the_rest() -> None:
    assert Spending().allow(Write("large", TRACE, STEP), 3) == Write("small", TRACE, REST)


def test_what_is_written_is_cut_to_what_is_left() -> None:
    cut = replace(STEP, max_tokens=7)
    for kind in (Write, Generate):
        assert Spending().allow(kind("large", TRACE, STEP), 7.0) == kind("large", TRACE, cut)
    fits = Write("large", TRACE, cut)
    assert Spending().allow(fits, 7.0) is fits


@pytest.mark.parametrize("action", [Generate("small", TRACE, STEP), Write("small", TRACE, STEP)])
def test_the_small_model_is_never_held_back(action: Any) -> None:
    assert Spending().allow(action, 0) is action
    accept = Accept(TRACE, Segment("large", "a"))
    assert Spending().allow(accept, 0) is accept


def test_a_price_that_nobody_named() -> None:
    with pytest.raises(InvalidRequest, match="names no prices") as caught:
        Spending.of(POLICIES["specreason"](max_cost=1), Limits())
    assert caught.value.param == "policy.max_cost"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_both_caps_and_no_nonsense(name: str) -> None:
    policy = POLICIES[name](max_large_tokens=0, max_cost=0.0)
    assert policy.called == {"small"} | policy.workers
    assert POLICIES[name]().called == policy.workers
    for key in ("max_large_tokens", "max_cost"):
        for value in (-1, "x", float("nan"), float("inf")):
            with pytest.raises(ValidationError) as caught:
                POLICIES[name](**{key: value})
            assert caught.value.errors()[0]["loc"] == (key,)


STORY = ("Wait, 2+2 is 4.\n\nand 4+2 is 6.\n\nlet me check it.\n\nso it is 6.", "It is six.")
STEPS = STORY[0].count("\n\n") + 1


def small(transcript: Transcript, criteria: StopCriteria) -> Say:
    """The story, unsure of every word: every gate of every policy sends it to the large model."""
    if transcript.closed:
        return Say(STORY[1])
    return Say(STORY[0].removeprefix(transcript.text), logprob=-3.0)


def pair() -> dict[str, Scripted]:
    return {"small": Scripted(small), "large": Scripted(story=STORY, scores=(0.0,))}


async def run(
    policy: Policy, limits: Limits | None = None
) -> tuple[list[Event], RequestCompleted, Scripted]:
    workers = pair()
    events, ended = await heard(policy, workers, limits=limits or Limits())
    assert sum(worker.live for worker in workers.values()) == 0
    return events, ended, workers["large"]


def thought_by_large(events: list[Event]) -> int:
    """Tokens that the large model made before the thought had ended, thrown away or not."""
    total = 0
    for event in events:
        if not isinstance(event, ActionCompleted):
            continue
        action, answer = event.action, event.answer
        if isinstance(action, Generate | Write) and action.worker == "large":
            total += 0 if action.transcript.closed else answer.usage.generated
        if isinstance(action, Accept) and action.segment.author == "large":
            drafted = any(
                isinstance(other, ActionCompleted)
                and getattr(other.answer, "segment", None) is action.segment
                for other in events
            )
            total += 0 if drafted else len(action.segment.tokens)
    return total


MORE: dict[str, dict[str, Any]] = {
    "speculative-thinking": {"choose_large": False, "every_delimiter": True},
}
CASES = [*((name, {}) for name in POLICIES), *MORE.items()]


@pytest.mark.parametrize("cap", [0, 1, 3, 5, 8, 1000])
@pytest.mark.parametrize(("name", "parameters"), CASES, ids=lambda value: str(value))
async def test_no_policy_exceeds_its_tokens_and_all_answer(
    name: str, parameters: dict[str, Any], cap: int
) -> None:
    policy = POLICIES[name](**parameters, max_large_tokens=cap)
    events, ended, large = await run(policy)
    transcript = ended.transcript
    assert (transcript.done, transcript.finish, transcript.forced) == (True, "stop", False)
    assert (transcript.text, transcript.answer.text()) == STORY
    assert thought_by_large(events) <= cap
    if cap == 0:
        assert all(call.call.transcript.closed for call in large.calls)
    assert await replays(policy, pair())


@pytest.mark.parametrize("name", POLICIES)
async def test_a_cap_that_is_not_reached_changes_nothing(name: str) -> None:
    _, free, _ = await run(POLICIES[name]())
    _, capped, _ = await run(POLICIES[name](max_large_tokens=10**6))
    assert capped.transcript == free.transcript
    assert [(one.author, one.text) for one in capped.steps] == [
        (one.author, one.text) for one in free.steps
    ]


async def test_the_large_model_begins_alone_and_the_small_one_ends_it() -> None:
    _, ended, _ = await run(POLICIES["large-only"](max_large_tokens=5))
    assert [(part.author, len(part.tokens)) for part in ended.transcript.thought] == [
        ("large", 5),
        ("small", 11),
    ]
    assert [part.author for part in ended.transcript.answer] == ["large"]


@pytest.mark.parametrize(
    "name", [name for name, policy in POLICIES.items() if "answer_by" in policy.model_fields]
)
async def test_behind_a_cap_answers_who_is_named(name: str) -> None:
    policy = POLICIES[name](answer_by="small", max_large_tokens=5)
    _, ended, _ = await run(policy)
    assert [part.author for part in ended.transcript.answer] == ["small"]


async def test_large_only_with_a_cap_needs_a_small_model() -> None:
    policy = POLICIES["large-only"](max_large_tokens=5)
    with pytest.raises(ConfigError, match="small"):
        await heard(policy, {"large": Scripted(story=STORY)})


@pytest.mark.parametrize("name", POLICIES)
async def test_money_is_kept_and_replayed(name: str) -> None:
    limits = Limits(prices=PRICES)
    policy = POLICIES[name](max_cost=60e-6)  # six tokens of the large model's
    events, ended, _ = await run(policy, limits)
    assert ended.transcript.done
    assert ended.transcript.text == STORY[0]
    assert thought_by_large(events) <= 6
    assert await replays(policy, pair(), limits=limits)


async def test_a_pair_without_a_thought_shares_the_answer_within_the_cap() -> None:
    story = ("", STORY[0])
    large = Scripted(story=story, scores=(0.0,), thinks=False)

    def plain(transcript: Transcript, criteria: StopCriteria) -> Say:
        return Say(STORY[0].removeprefix(transcript.text))

    policy = POLICIES["specreason"](max_large_tokens=8)
    _, ended = await heard(policy, {"small": Scripted(plain, thinks=False), "large": large})
    authors = [(part.author, len(part.tokens)) for part in ended.transcript.answer]
    assert sum(size for author, size in authors if author == "large") == 8
    assert ended.transcript.text == STORY[0]


def endless(transcript: Transcript, criteria: StopCriteria) -> Say:
    """A thought without an end, every step another, the small model unsure of each."""
    if transcript.closed:
        return Say("Six.")
    step = transcript.text.count("\n\n")
    steps = "".join(f"so {number} is not it.\n\n" for number in range(step, step + 100))
    return Say(steps, logprob=-3.0)


@pytest.mark.parametrize(("cap", "most"), [(100, 150), (50, 100), (200, 260), (7, 100), (90, 100)])
@pytest.mark.parametrize("name", POLICIES)
async def test_a_thought_that_both_caps_cut_is_answered(name: str, cap: int, most: int) -> None:
    policy = POLICIES[name](max_large_tokens=cap)
    workers = {"small": Scripted(endless), "large": Scripted(endless, scores=(0.0,))}
    events, ended = await heard(policy, workers, limits=Limits(max_tokens=most))
    transcript = ended.transcript
    assert (transcript.forced, transcript.finish) == (True, "length")
    assert transcript.answer.text() == "Six."
    assert transcript.thought.tokens >= most // 4
    assert transcript.thought.tokens + transcript.answer.tokens <= most
    assert thought_by_large(events) <= cap


async def test_a_context_that_is_full_when_the_small_model_takes_over_ends_the_thought() -> None:
    def full(transcript: Transcript, criteria: StopCriteria) -> Say:
        return Say("", "length")  # no token made, however many were allowed

    small = Scripted(full)
    policy = POLICIES["large-only"](max_large_tokens=5)
    _, ended = await heard(policy, {"small": small, "large": Scripted(story=STORY)})
    assert ended.transcript.finish == "length"
    assert ended.transcript.thought.tokens == 5
    assert len(small.calls) == 1


class HalfCharacter(Scripted):
    """Its last token allowed begins a character that is not whole: counted, and not given."""

    async def generate(self, *args: Any, **options: Any) -> Any:
        async for item in super().generate(*args, **options):
            if isinstance(item, Generation) and item.segment.finish == "length":
                tokens = item.segment.tokens[:-1]
                text = "".join(words(item.segment.text)[:-1])
                item = replace(item, segment=replace(item.segment, text=text, tokens=tokens))
            if isinstance(item, Generation):
                yield item


async def test_half_a_character_at_the_cap_is_left_to_the_small_model() -> None:
    policy = POLICIES["large-only"](max_large_tokens=5)
    workers = {"small": Scripted(small), "large": HalfCharacter(story=STORY)}
    _, ended = await heard(policy, workers)
    assert ended.transcript.finish == "stop"
    assert ended.transcript.text == STORY[0]
    assert [(part.author, len(part.tokens)) for part in ended.transcript.thought] == [
        ("large", 4),
        ("small", 12),
    ]
