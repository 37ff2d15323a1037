"""BiLD as a dialogue: the test plays both workers; then the embedded pair against large-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import REST, Accept, Generate, Reject, Verify, WorkerName, Write
from orchestrator.loop.events import ActionCompleted, RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Finish,
    Generation,
    Message,
    Sampling,
    Segment,
    Transcript,
    Usage,
    Verification,
)
from policies.bild import NOTHING, BiLD
from policies.single import LargeOnly
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
    text: str, choices: str, surprise: Sequence[float] = (), ending: float | None = None
) -> Verification:
    """The large model's reading of letters; its choice "." ends the thought."""
    options = tuple(
        segment("large", "", "think_end") if own == "." else segment("large", own)
        for own in choices
    )
    assert len(choices) == len(text) + 1
    surprise = tuple(surprise) or (0.0,) * len(text)
    return Verification(
        surprise, tuple(map(ord, choices)), Usage(), 0.0, tuple(text), options, ending
    )


class Play(plays.Play):
    """A play in which the small model has just been asked to write."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(BiLD(**{"large_first": False, **parameters}))

    def reads(self, written: Generation, answer: Verification) -> Any:
        """Let the small model write and the large one read it; return what is asked then."""
        assert self(written) == Verify("large", TRACE, written.segment)
        return self(answer)


def drafts(action: Any, transcript: Transcript) -> bool:
    """Return whether the small model is asked to write."""
    asked = isinstance(action, Generate)
    return asked and (action.worker, action.transcript) == ("small", transcript)


def test_the_large_model_writes_the_first_token_without_being_asked_to_generate() -> None:
    play = Play(large_first=True)
    assert play.first == Verify("large", TRACE, NOTHING)
    one = segment("large", "a")
    assert play(verdict("", "a")) == Accept(TRACE, one)
    assert drafts(play(TRACE.extend(one)), TRACE.extend(one))


@pytest.mark.parametrize(
    ("parameters", "tokens", "confidence"),
    [
        ({"fallback": 0.7, "window": 4}, 4, 0.7),
        ({"fallback": 0, "window": 1}, 1, 0),
        ({"fallback": 1}, 10, inf),  # a probability may round to 1
    ],
)
def test_the_small_model_writes_a_window_or_up_to_a_doubt(
    parameters: dict[str, Any], tokens: int, confidence: float
) -> None:
    criteria = Play(**parameters).first.criteria
    assert (criteria.max_tokens, criteria.min_confidence) == (tokens, confidence)


@pytest.mark.parametrize("written", [draft("abc"), draft("abc", "length"), draft("a", "length")])
def test_without_a_rollback_all_tokens_stay_and_one_of_the_large_follows(
    written: Generation,
) -> None:
    play, text = Play(), written.segment.text
    assert play.reads(written, verdict(text, f"{text}d")) == Accept(TRACE, written.segment)
    after = TRACE.extend(written.segment)
    assert play(after) == Accept(after, segment("large", "d"))
    after = after.extend(segment("large", "d"))
    assert drafts(play(after), after)


@pytest.mark.parametrize(
    "nothing", [draft(""), Generation(segment("small", "", "length"), Usage(generated=1))]
)
def test_a_doubt_or_half_a_character_is_left_to_the_large_model(nothing: Generation) -> None:
    assert Play().reads(nothing, verdict("", "x")) == Accept(TRACE, segment("large", "x"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_surprising_token_goes_with_all_that_follows(place: int) -> None:
    play = Play(rollback=2.0)
    surprise = [9.0 if at == place else 2.0 for at in range(3)]  # the threshold itself passes
    asked = play.reads(draft("abc"), verdict("abc", "xyzw", surprise))
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
    assert drafts(play(transcript), transcript)


def test_as_in_the_released_code_the_large_model_continues_after_a_rollback() -> None:
    play = Play(rollback=2.0, after_rollback="large")
    play.reads(draft("ab"), verdict("ab", "xyz", (9.0, 0.0)))
    transcript = TRACE
    for answer, own in ((None, "x"), (verdict("", "y"), "y")):
        assert play(answer) == Accept(transcript, segment("large", own))
        transcript = transcript.extend(segment("large", own))
        play(transcript)
        assert own == "y" or play.asked == Verify("large", transcript, NOTHING)
    assert drafts(play.asked, transcript)  # one token, and no more


@pytest.mark.parametrize(
    ("rollback", "choices", "surprise", "kept"),
    [
        (0, "abcd", (0.1, 9.0, inf), "abc"),  # the large model would have written them too
        (1, "abyd", (9.0, 0.0, 9.0), "ab"),  # a later one is judged after one that is not wrong
        (None, "wxyz", (inf, inf, inf), "abc"),  # without a limit
        (inf, "wxyz", (inf, inf, inf), "abc"),
        ("inf", "wxyz", (inf, inf, inf), "abc"),
    ],
)
def test_which_tokens_are_taken_back(
    rollback: Any, choices: str, surprise: tuple[float, ...], kept: str
) -> None:
    asked = Play(rollback=rollback).reads(draft("abc"), verdict("abc", choices, surprise))
    finish: Finish = "doubt" if kept == "abc" else "until"
    assert asked == Accept(TRACE, segment("small", kept, finish))
    if rollback in (None, inf, "inf"):
        assert BiLD(rollback=rollback).model_dump(mode="json")["rollback"] is None


@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_an_end_in_discarded_text_ends_nothing(finish: Finish) -> None:
    play = Play(rollback=1)
    kept = segment("small", "a")
    answer = verdict("abc", "axyz", (0.0, 9.0, 0.0), 0.0)
    assert play.reads(draft("abc", finish), answer) == Accept(TRACE, kept)
    transcript = TRACE.extend(kept)
    assert play(transcript) == Reject(segment("small", "bc", finish))
    assert play(None) == Accept(transcript, segment("large", "x"))
    transcript = transcript.extend(segment("large", "x"))
    assert drafts(play(transcript), transcript)


@pytest.mark.parametrize("text", ["", "ab"])
@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_an_end_is_judged_like_a_token(text: str, finish: Finish) -> None:
    closing = draft(text, finish)
    play = Play(rollback=1)
    answer = verdict(text, f"{text}x", ending=0.9)
    assert play.reads(closing, answer) == Accept(TRACE, closing.segment)
    assert isinstance(play(replace(TRACE, closed=True)), Write)
    play = Play(rollback=1)
    asked = play.reads(closing, verdict(text, f"{text}x", ending=1.1))
    transcript = TRACE
    if text:
        kept = replace(closing.segment, finish="until")
        assert asked == Accept(TRACE, kept)
        transcript = TRACE.extend(kept)
        asked = play(transcript)
    assert asked == Accept(transcript, segment("large", "x"))


def test_an_end_on_which_both_agree_stays_whatever_its_surprise() -> None:
    closing = draft("a", "think_end")
    asked = Play(rollback=0).reads(closing, verdict("a", "a.", ending=3.0))
    assert asked == Accept(TRACE, closing.segment)


def test_the_large_models_choice_may_end_the_thought() -> None:
    play, written = Play(), draft("a")
    play.reads(written, verdict("a", "a."))
    after = TRACE.extend(written.segment)
    assert play(after) == Accept(after, segment("large", "", "think_end"))
    assert writes(play(replace(after, closed=True)), "large")
    assert ends(play, replace(after, closed=True, done=True))


def test_no_choice_follows_a_token_that_used_up_the_budget() -> None:
    play, written = Play(), draft("a", "length")
    play.reads(written, verdict("a", "ab"))
    closed = replace(TRACE.extend(written.segment), closed=True, forced=True)
    assert isinstance(play(closed), Write)


def test_a_small_model_whose_context_is_full_is_not_asked_again() -> None:
    assert isinstance(Play()(Generation(segment("small", "", "length"))), Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_draft_that_was_not_verified_is_dropped(error: Exception) -> None:
    play, written = Play(), draft("ab", "think_end")
    play(written)
    assert play(error) == Reject(written.segment)
    assert writes(play(None), "large", TRACE)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Unsupported("another vocabulary"), "another vocabulary"),
        (Verification((0.1,), (1, 2)), "choices as text"),
    ],
)
def test_a_pair_that_cannot_is_refused(answer: Any, message: str) -> None:
    play = Play()
    play(draft("a"))
    with pytest.raises(Unsupported, match=message):
        play(answer)


@pytest.mark.parametrize("replies", [[GONE], [draft("ab"), GONE, None]])
def test_who_answers_after_a_failure_too(replies: list[Any]) -> None:
    play = Play(answer_by="small")
    for reply in replies:
        play(reply)
    assert play.asked == Write("large", TRACE, REST)
    assert writes(play(replace(TRACE, closed=True)), "small")


# --- whole requests ------------------------------------------------------------------------------

Pair = Mapping[WorkerName, Any]


async def run(
    policy: Policy, workers: Pair, question: str = "?", sampling: Sampling | None = None
) -> tuple[RequestCompleted, list[Any]]:
    """The last event and the actions of a request."""
    request = Request(question, (Message("user", question),), sampling or Sampling())
    heard = [event async for event in solve(policy, request, workers)]
    assert isinstance(heard[-1], RequestCompleted)
    return heard[-1], [e.action for e in heard if isinstance(e, ActionCompleted)]


def said(ended: RequestCompleted) -> tuple[Any, ...]:
    """Ids and texts of thought and answer, and how they ended."""
    transcript = ended.transcript
    return (
        [token for part in transcript.thought for token in part.tokens],
        transcript.text,
        transcript.answer.text(),
        transcript.forced,
        transcript.finish,
    )


async def test_stories_that_differ_are_brought_together() -> None:
    small = Scripted(story=("one two six four.", "6"))
    large = Scripted(story=("one two three four.", "4"), scores=(9.0,))
    ended, _ = await run(BiLD(), {"small": small, "large": large})
    assert ended.transcript.text == "one two three four."
    assert [(step.author, step.text, step.accepted) for step in ended.steps[:4]] == [
        ("large", "one ", True),
        ("small", "two ", True),
        ("small", "six four.", False),
        ("large", "three ", True),
    ]
    dropped = sum(step.tokens for step in ended.steps if not step.accepted)
    assert ended.metrics.discarded_tokens == dropped
    assert [one.operation for one in large.calls].count("generate") == 1  # the answer


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
    with pytest.raises(Unsupported, match="tokenizers of this pair differ"):
        await anext(solve(BiLD(), Request("r", TRACE.messages), workers))
    ended, _ = await run(LargeOnly(), workers)  # which hands nothing over
    assert ended.transcript.text == "a b"


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
        alone, _ = await run(LargeOnly(), pair, question)
        ended, asked = await run(BiLD(**parameters), pair, question)
        assert said(ended) == said(alone)
        verified = [action for action in asked if isinstance(action, Verify)]
        assert len(verified) <= len(said(alone)[0]) + 1
        written = [a for a in asked if isinstance(a, Generate | Write) and a.worker == "large"]
        assert len(written) == 1 + 1  # its reading of the prompt, and the answer
        if "fallback" in parameters and parameters["fallback"] == 1:
            assert {step.author for step in ended.steps} == {"large"}


async def test_a_pair_of_equals_never_rolls_back(pair: Pair) -> None:
    equals: Pair = {"small": pair["large"], "large": pair["large"]}
    alone, _ = await run(LargeOnly(), pair, QUESTIONS[0])
    ended, _ = await run(BiLD(rollback=0, fallback=0), equals, QUESTIONS[0])
    assert said(ended) == said(alone)
    assert all(step.accepted for step in ended.steps)


async def test_the_kept_part_of_a_draft_has_its_share_of_the_time(pair: Pair) -> None:
    runs = [await run(BiLD(rollback=0), pair, question) for question in QUESTIONS]
    steps = [step for ended, _ in runs for step in ended.steps]
    parts = [step for step in steps if step.author == "small" and step.tokens]
    assert not all(step.accepted for step in parts)
    assert all(step.ms > 0 for step in parts)


@pytest.mark.parametrize("budget", [1, 2, 7])
async def test_a_budget_is_kept_to_the_token(pair: Pair, budget: int) -> None:
    ended, _ = await run(BiLD(budget=budget, window=4), pair, QUESTIONS[0])
    transcript = ended.transcript
    assert (transcript.thought.tokens, transcript.forced) == (budget, True)
    assert transcript.answer.tokens > 0


async def test_sampling_is_reproducible_and_not_greedy(pair: Pair) -> None:
    policy = BiLD(fallback=0.3, rollback=6.0)
    sampled = [Sampling(1.2, top_p=0.95, seed=seed) for seed in (5, 5, 6)]
    texts = [said((await run(policy, pair, QUESTIONS[1], one))[0]) for one in sampled]
    assert texts[0] == texts[1] != texts[2]
