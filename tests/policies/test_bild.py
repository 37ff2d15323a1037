"""BiLD as a dialogue: the test plays both workers; then the embedded pair against large-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import (
    ContextLengthExceeded,
    Unsupported,
    WorkerUnavailable,
)
from orchestrator.loop.actions import Accept, Generate, Reject, Verify, WorkerName, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Finish,
    Generation,
    Limits,
    Message,
    Sampling,
    Segment,
    Transcript,
    Usage,
    Verification,
)
from policies.bild import NOTHING, BiLD
from policies.single import LargeOnly
from policies.steps import REST
from tests.policies import plays
from tests.policies.plays import GONE, TRACE, ends, writes
from tests.workers.scripted import Scripted
from workers.worker import EngineWorker


def segment(author: Any, text: str, finish: Finish = "until") -> Segment:
    """One token a letter, its id the letter's code."""
    return Segment(author, text, tuple(map(ord, text)), (-0.1,) * len(text), "letters", finish)


def draft(text: str, finish: Finish = "doubt") -> Generation:
    return Generation(segment("small", text, finish), Usage(generated=len(text) + 1))


def verdict(
    said: str, choices: str, surprise: Sequence[float] = (), ending: float | None = None
) -> Verification:
    """What the large model says of letters; its choice "." ends the thought."""
    options = tuple(
        segment("large", "", "think_end") if own == "." else segment("large", own)
        for own in choices
    )
    assert len(choices) == len(said) + 1
    surprise = tuple(surprise) or (0.0,) * len(said)
    return Verification(
        surprise, tuple(map(ord, choices)), Usage(), 0.0, tuple(said), options, ending
    )


class Play(plays.Play):
    def __init__(self, **parameters: Any) -> None:
        super().__init__(BiLD(**parameters))


def drafting(**parameters: Any) -> Play:
    """A play in which the small model has just been asked to write."""
    play = Play(large_first=False, **parameters)
    assert isinstance(play.first, Generate)
    return play


def asks(question: Any, worker: str, transcript: Transcript) -> bool:
    return (question.worker, question.transcript) == (worker, transcript)


def test_the_large_model_writes_the_first_token_without_being_asked_to_generate() -> None:
    play = Play()
    assert play.first == Verify("large", TRACE, NOTHING)
    one = segment("large", "a")
    assert play(verdict("", "a")) == Accept(TRACE, one)
    asked = play(TRACE.extend(one))
    assert isinstance(asked, Generate)
    assert asks(asked, "small", TRACE.extend(one))


def test_the_small_model_writes_a_window_or_up_to_a_doubt() -> None:
    play = drafting(fallback=0.7, window=4)
    assert isinstance(play.first, Generate)
    assert (play.first.criteria.max_tokens, play.first.criteria.min_confidence) == (4, 0.7)


@pytest.mark.parametrize("finish", ["doubt", "length"])
def test_without_a_rollback_all_tokens_stay_and_one_of_the_large_follows(finish: Finish) -> None:
    play = drafting()
    written = draft("abc", finish)
    assert play(written) == Verify("large", TRACE, written.segment)
    assert play(verdict("abc", "abcd")) == Accept(TRACE, written.segment)
    after = TRACE.extend(written.segment)
    assert play(after) == Accept(after, segment("large", "d"))
    after = after.extend(segment("large", "d"))
    assert asks(play(after), "small", after)


def test_a_doubt_at_the_first_token_leaves_it_to_the_large_model() -> None:
    play = drafting()
    nothing = draft("")
    assert play(nothing) == Verify("large", TRACE, nothing.segment)
    assert play(verdict("", "x")) == Accept(TRACE, segment("large", "x"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_surprising_token_goes_with_all_that_follows(place: int) -> None:
    play = drafting(rollback=2.0)
    play(draft("abc"))
    surprise = [9.0 if at == place else 2.0 for at in range(3)]  # the threshold itself passes
    asked = play(verdict("abc", "xyzw", surprise))
    transcript = TRACE
    if place:
        kept = replace(segment("small", "abc"[:place]), finish="until")
        assert asked == Accept(TRACE, kept)
        transcript = TRACE.extend(kept)
        asked = play(transcript)
    assert asked == Reject(segment("small", "abc"[place:], "doubt"))
    own = segment("large", "xyz"[place])
    assert play(None) == Accept(transcript, own)
    transcript = transcript.extend(own)
    asked = play(transcript)
    assert isinstance(asked, Generate)
    assert asks(asked, "small", transcript)


def test_as_in_the_released_code_the_large_model_goes_on_after_a_rollback() -> None:
    play = drafting(rollback=2.0, after_rollback="large")
    play(draft("ab"))
    play(verdict("ab", "xyz", (9.0, 0.0)))
    assert play(None) == Accept(TRACE, segment("large", "x"))
    transcript = TRACE.extend(segment("large", "x"))
    assert play(transcript) == Verify("large", transcript, NOTHING)
    assert play(verdict("", "y")) == Accept(transcript, segment("large", "y"))
    transcript = transcript.extend(segment("large", "y"))
    assert asks(play(transcript), "small", transcript)  # one token, and no more


def test_a_token_that_the_large_model_would_have_written_too_is_no_offence() -> None:
    play = drafting(rollback=0)
    written = draft("abc")
    play(written)
    assert play(verdict("abc", "abcd", (0.1, 9.0, inf))) == Accept(TRACE, written.segment)


def test_a_later_offence_is_seen_behind_one_that_is_none() -> None:
    play = drafting(rollback=1)
    play(draft("abc"))
    kept = replace(segment("small", "ab"), finish="until")
    assert play(verdict("abc", "abyd", (9.0, 0.0, 9.0))) == Accept(TRACE, kept)


@pytest.mark.parametrize("never", [None, inf, "inf"])
def test_nothing_is_taken_back_without_a_limit(never: Any) -> None:
    play = drafting(rollback=never)
    written = draft("ab")
    play(written)
    assert play(verdict("ab", "xyz", (inf, inf))) == Accept(TRACE, written.segment)
    assert BiLD(rollback=never).model_dump(mode="json")["rollback"] is None


def test_thresholds_that_ask_for_nothing_and_for_everything() -> None:
    assert drafting(fallback=0).first.criteria.min_confidence == 0
    assert drafting(fallback=1).first.criteria.min_confidence > 1


def test_a_window_of_one() -> None:
    play = drafting(window=1)
    assert play.first.criteria.max_tokens == 1
    written = draft("a", "length")
    play(written)
    assert play(verdict("a", "ab")) == Accept(TRACE, written.segment)
    half = Generation(segment("small", "", "length"), Usage(generated=1))  # of a character
    play = drafting(window=1)
    assert play(half) == Verify("large", TRACE, half.segment)
    assert play(verdict("", "b")) == Accept(TRACE, segment("large", "b"))


@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_an_end_in_discarded_text_ends_nothing(finish: Finish) -> None:
    play = drafting(rollback=1)
    play(draft("abc", finish))
    kept = replace(segment("small", "a"), finish="until")
    assert play(verdict("abc", "axyz", (0.0, 9.0, 0.0), 0.0)) == Accept(TRACE, kept)
    transcript = TRACE.extend(kept)
    assert play(transcript) == Reject(segment("small", "bc", finish))
    assert play(None) == Accept(transcript, segment("large", "x"))
    transcript = transcript.extend(segment("large", "x"))
    assert isinstance(play(transcript), Generate)


@pytest.mark.parametrize("text", ["", "ab"])
@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_an_end_is_judged_like_a_token(text: str, finish: Finish) -> None:
    closing = draft(text, finish)
    play = drafting(rollback=1)
    play(closing)
    assert play(verdict(text, f"{text}x", ending=0.9)) == Accept(TRACE, closing.segment)
    answer = play(replace(TRACE, closed=True))
    assert isinstance(answer, Write)
    play = drafting(rollback=1)
    play(closing)
    asked = play(verdict(text, f"{text}x", ending=1.1))
    transcript = TRACE
    if text:
        kept = replace(closing.segment, finish="until")
        assert asked == Accept(TRACE, kept)
        transcript = TRACE.extend(kept)
        asked = play(transcript)
    assert asked == Accept(transcript, segment("large", "x"))


def test_an_end_on_which_both_agree_stays_whatever_its_surprise() -> None:
    play = drafting(rollback=0)
    closing = draft("a", "think_end")
    play(closing)
    assert play(verdict("a", "a.", ending=3.0)) == Accept(TRACE, closing.segment)


def test_the_large_models_choice_may_end_the_thought() -> None:
    play = drafting()
    written = draft("a")
    play(written)
    play(verdict("a", "a."))
    after = TRACE.extend(written.segment)
    assert play(after) == Accept(after, segment("large", "", "think_end"))
    assert writes(play(replace(after, closed=True)), "large")
    assert ends(play, replace(after, closed=True, done=True))


def test_no_choice_follows_a_token_that_used_up_the_budget() -> None:
    play = drafting()
    written = draft("a", "length")
    play(written)
    play(verdict("a", "ab"))
    closed = replace(TRACE.extend(written.segment), closed=True, forced=True)
    assert isinstance(play(closed), Write)


def test_a_small_model_whose_context_is_full_is_not_asked_again() -> None:
    play = drafting()
    assert isinstance(play(Generation(segment("small", "", "length"))), Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_draft_that_nobody_verified_is_dropped(error: Exception) -> None:
    play = drafting()
    written = draft("ab", "think_end")
    play(written)
    assert play(error) == Reject(written.segment)
    assert writes(play(None), "large", TRACE)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


def test_a_pair_that_cannot_is_told() -> None:
    play = drafting()
    play(draft("a"))
    with pytest.raises(Unsupported, match="another vocabulary"):
        play(Unsupported("another vocabulary"))
    play = drafting()
    play(draft("a"))
    with pytest.raises(Unsupported, match="choices as text"):
        play(Verification((0.1,), (1, 2)))


@pytest.mark.parametrize("replies", [[GONE], [draft("ab"), GONE, None]])
def test_who_answers_behind_a_failure_too(replies: list[Any]) -> None:
    play = drafting(answer_by="small")
    for reply in replies:
        play(reply)
    assert play.asked == Write("large", TRACE, REST)
    assert writes(play(replace(TRACE, closed=True)), "small")


# --- whole requests ------------------------------------------------------------------------------

Pair = Mapping[WorkerName, Any]


async def run(
    policy: Policy, workers: Pair, question: str, sampling: Sampling | None = None, **limits: Any
) -> tuple[Transcript, RequestCompleted, list[Any]]:
    """The final trace, the last event and the actions of a request."""
    asked = (Message("user", question),)
    request = Request(question, asked, sampling or Sampling(), Limits(**limits))
    events = solve(policy, request, workers)
    heard = [event async for event in events]
    assert isinstance(heard[-1], RequestCompleted)
    return (
        heard[-1].transcript,
        heard[-1],
        [e.action for e in heard if isinstance(e, ActionCompleted)],
    )


def said(transcript: Transcript) -> tuple[Any, ...]:
    """Ids and texts of thought and answer, and how they ended."""
    return (
        [token for part in transcript.thought for token in part.tokens],
        transcript.text,
        "".join(part.text for part in transcript.answer),
        transcript.forced,
        transcript.finish,
    )


async def test_stories_that_differ_are_brought_together() -> None:
    small = Scripted(story=("one two six four.", "6"))
    large = Scripted(story=("one two three four.", "4"), scores=(9.0,))
    transcript, ended, _ = await run(BiLD(), {"small": small, "large": large}, "?")
    assert transcript.text == "one two three four."
    assert ended.steps[1].accepted
    assert not ended.steps[2].accepted
    assert [(step.author, step.text) for step in ended.steps[:4]] == [
        ("large", "one "),
        ("small", "two "),
        ("small", "six four."),
        ("large", "three "),
    ]
    dropped = sum(step.tokens for step in ended.steps if not step.accepted)
    assert ended.metrics.discarded_tokens == dropped
    assert [one.operation for one in large.calls].count("generate") == 1  # the answer


async def test_the_worker_dies_between_draft_and_verification() -> None:
    small, large = (
        Scripted(story=("a b c d.", "4")),
        Scripted(story=("a b c d.", "4"), failures={1: GONE}),
    )
    transcript, ended, _ = await run(BiLD(window=2), {"small": small, "large": large}, "?")
    assert transcript.text == "a b c d."
    assert [step.text for step in ended.steps if not step.accepted] == ["b c "]


async def test_another_tokenizer_is_refused_before_anything_is_shown() -> None:
    class Other(Scripted):
        name = ""

        async def generate(self, *args: Any, **options: Any) -> Any:
            async for item in super().generate(*args, **options):
                if isinstance(item, Generation):
                    item = replace(item, segment=replace(item.segment, tokenizer=self.name))
                yield item

    small, large = Other(story=("a b", "c")), Other(story=("a b", "c"))
    small.name, large.name = "one", "another"
    workers: Pair = {"small": small, "large": large}
    events = solve(BiLD(), Request("r", TRACE.messages), workers)
    with pytest.raises(Unsupported, match="tokenizers of this pair differ"):
        await anext(events)
    transcript, _, _ = await run(LargeOnly(), workers, "?")  # which hands nothing over
    assert transcript.text == "a b"


QUESTIONS = [problem.question for problem in draw("dev", 11, 5)]


@pytest.fixture
def pair(embedded: EngineWorker, large: EngineWorker) -> Pair:
    return {"small": embedded, "large": large}


@pytest.mark.parametrize(
    "parameters",
    [
        {"fallback": 1},
        {"rollback": 0},
        {"rollback": 0, "fallback": 0, "window": 3, "after_rollback": "large"},
        {"rollback": 0, "window": 1, "large_first": False},
    ],
)
async def test_the_strictest_thresholds_give_what_the_large_model_writes_alone(
    pair: Pair, parameters: dict[str, Any]
) -> None:
    for question in QUESTIONS[:2]:
        alone, _, _ = await run(LargeOnly(), pair, question)
        transcript, ended, asked = await run(BiLD(**parameters), pair, question)
        assert said(transcript) == said(alone)
        verified = [action for action in asked if isinstance(action, Verify)]
        assert len(verified) <= len(said(alone)[0]) + 1
        written = [a for a in asked if isinstance(a, Generate | Write) and a.worker == "large"]
        assert len(written) == 1 + 1  # its reading of the prompt, and the answer
        if "fallback" in parameters and parameters["fallback"] == 1:
            assert {step.author for step in ended.steps} == {"large"}


async def test_a_pair_of_equals_never_rolls_back(pair: Pair) -> None:
    equals: Pair = {"small": pair["large"], "large": pair["large"]}
    for question in QUESTIONS[:2]:
        alone, _, _ = await run(LargeOnly(), pair, question)
        transcript, ended, _ = await run(BiLD(rollback=0, fallback=0), equals, question)
        assert said(transcript) == said(alone)
        assert all(step.accepted for step in ended.steps)


async def test_what_is_left_of_a_draft_has_its_share_of_the_time(pair: Pair) -> None:
    runs = [await run(BiLD(rollback=0), pair, question) for question in QUESTIONS]
    steps = [step for _, ended, _ in runs for step in ended.steps]
    parts = [step for step in steps if step.author == "small" and step.tokens]
    assert not all(step.accepted for step in parts)
    assert all(step.ms > 0 for step in parts)


async def test_without_thresholds_every_window_is_the_small_models(pair: Pair) -> None:
    policy = BiLD(fallback=0, rollback=None, window=4)
    transcript, ended, _ = await run(policy, pair, QUESTIONS[0])
    assert all(step.accepted for step in ended.steps)
    sizes = [(step.author, step.tokens) for step in ended.steps if step.phase == "thought"]
    assert sizes[:4] == [("large", 1), ("small", 4), ("large", 1), ("small", 4)]
    assert transcript.done


@pytest.mark.parametrize("budget", [1, 2, 7])
async def test_a_budget_is_kept_to_the_token(pair: Pair, budget: int) -> None:
    transcript, _, _ = await run(BiLD(budget=budget, window=4), pair, QUESTIONS[0])
    assert transcript.thought.tokens == budget
    assert transcript.forced
    assert transcript.answer.tokens > 0


async def test_sampling_is_reproducible_and_not_greedy(pair: Pair) -> None:
    sampling = Sampling(1.2, top_p=0.95, seed=5)
    policy = BiLD(fallback=0.3, rollback=6.0)
    texts = [said((await run(policy, pair, QUESTIONS[1], sampling))[0]) for _ in range(2)]
    assert texts[0] == texts[1]
    other = replace(sampling, seed=6)
    assert said((await run(policy, pair, QUESTIONS[1], other))[0]) != texts[0]
