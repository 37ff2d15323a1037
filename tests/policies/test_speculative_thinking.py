"""Speculative Thinking: as a dialogue (the test plays both workers), and in the step loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.launch.deployment_file import DEFAULT_FILE, load
from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import Accept, Action, Generate, Reject, Write
from orchestrator.types import Finish, Generation, Segment, Segments, StopCriteria, Transcript
from orchestrator.worker import Worker
from policies.single import SmallOnly
from policies.speculative_thinking import SpeculativeThinking
from policies.steps import REST
from tests.policies import plays
from tests.policies.plays import GONE, run, said, writes
from tests.policies.plays import TRACE as START
from tests.workers.scripted import Say, Scripted, segment

AFTER_ONE = START.extend(segment("small", "First, 2+2=4.\n\n"))
"""A trace that stands at a delimiter."""

PARAGRAPH, PROBE = StopCriteria(1024, until=("\n\n",)), StopCriteria(20, until=("\n\n",))
SILENT: dict[str, Any] = {"affirmation": (), "reflection": (), "verification": ()}


def draft(text: str, finish: Finish = "length", author: Any = "small") -> Generation:
    return Generation(segment(author, text, finish))


def more(transcript: Transcript, author: Any, text: str) -> Transcript:
    """What the driver says to a Write or an Accept."""
    return transcript.extend(segment(author, text, "length"))


class Play(plays.Play):
    """A play from the first delimiter on: its `opening` is answered."""

    def __init__(self, transcript: Transcript = AFTER_ONE, **parameters: Any) -> None:
        super().__init__(SpeculativeThinking(**parameters), START)
        self.opening = self.first
        if transcript is not START:
            self.first = self(transcript)


def test_the_small_model_begins_and_is_probed_at_the_first_delimiter() -> None:
    play = Play()
    assert play.opening == Write("small", START, PARAGRAPH)
    assert play.first == Generate("small", AFTER_ONE, PROBE)


def test_a_statement_is_committed_and_gone_on_with() -> None:
    play = Play()
    probe = draft("Then 4 and 2")
    assert play(probe) == Accept(AFTER_ONE, probe.segment)
    transcript = AFTER_ONE.extend(probe.segment)
    assert play(transcript) == Write("small", transcript, PARAGRAPH)


def test_a_probe_that_ends_its_paragraph_is_followed_by_the_next_probe() -> None:
    play = Play()
    probe = draft("Then 6.\n\n", "until")
    play(probe)
    transcript = AFTER_ONE.extend(probe.segment)
    assert play(transcript) == Generate("small", transcript, PROBE)


@pytest.mark.parametrize("text", ["Wait, 2", "YES, so", "Alternatively we", "Let me verify"])
def test_rule_1_the_large_model_writes_the_sentence_instead(text: str) -> None:
    play = Play()
    probe = draft(text)
    assert play(probe) == Reject(probe.segment)
    takeover = play(None)
    assert takeover == Write(
        "large", AFTER_ONE, StopCriteria(20)
    )  # across delimiters, into a sentence
    after = more(AFTER_ONE, "large", "So 4 plus")
    assert play(after) == Write("small", after, PARAGRAPH)


@pytest.mark.parametrize("off", [{"n2": 0}, {"verification": ()}, {}])
def test_rule_2_the_large_model_continues_where_it_verifies(off: dict[str, Any]) -> None:
    play = Play(**{"n2": 77, **off})
    play(draft("Wait, 2"))
    play(None)
    after = more(AFTER_ONE, "large", "Let me Double-Check: 2+2")
    if off:
        assert play(after) == Write("small", after, PARAGRAPH)
        return
    assert play(after) == Write("large", after, StopCriteria(77))
    verified = more(after, "large", "is 4. Check.\n\n")
    assert play(verified) == Generate("small", verified, PROBE)


def test_rule_2_looks_at_what_was_kept_not_at_the_probe() -> None:
    play = Play()
    play(draft("Let me verify"))
    play(None)
    after = more(AFTER_ONE, "large", "So 6.")
    assert play(after) == Write("small", after, PARAGRAPH)


def test_rule_3_can_be_off() -> None:
    play = Play(patience=None)
    transcript = AFTER_ONE
    for _ in range(40):
        transcript, question = reflect(play, transcript)
        assert isinstance(question, Generate)


def test_only_kept_reflections_count() -> None:
    play = Play(patience=1)
    play(draft("Wait, 2"))
    play(None)
    assert isinstance(play(more(AFTER_ONE, "large", "So 4.\n\n")), Generate)


def reflect(play: Play, transcript: Transcript) -> tuple[Transcript, Action[Any]]:
    """One reflection that stays, up to the next delimiter: the trace, and what comes then."""
    play(draft("Wait, 2"))
    play(None)
    transcript = more(transcript, "large", "Wait, 4.\n\n")
    return transcript, play(transcript)


def test_rule_3_checks_when_the_counter_is_reached_exactly_and_grows() -> None:
    play = Play(patience=2, patience_growth=1, patience_max=3, n3=10, n3_growth=5, n3_max=12)
    transcript, question = reflect(play, AFTER_ONE)
    assert isinstance(question, Generate)  # 1 of 2
    for patience, n3 in ((2, 10), (3, 12), (3, 12)):
        while isinstance(question, Generate):
            transcript, question = reflect(play, transcript)
        check = Segment("policy", "Let me check whether there are some wrong steps:")
        assert question == Accept(transcript, check)
        kept = [part for part in transcript.thought if part.text.startswith("Wait")]
        assert len(kept) == patience, n3
        transcript = transcript.extend(check)
        assert play(transcript) == Write("large", transcript, StopCriteria(n3))
        transcript = replace(transcript, thought=Segments())  # counted anew
        transcript = transcript.extend(segment("large", "2+2 is 4.\n\n"))
        question = play(transcript)
        assert isinstance(question, Generate)


def test_rule_3_puts_nothing_into_an_answer() -> None:
    answer = START.without_thought().extend(segment("small", "First, 2+2=4.\n\n"))
    transcript, question = reflect(Play(answer, patience=1, n3=10), answer)
    assert question == Write("large", transcript, StopCriteria(10))


def test_growth_never_shrinks_what_is_beyond_its_cap() -> None:
    play = Play(patience=1, patience_max=1, n3=300, n3_max=200)
    transcript = AFTER_ONE
    for _ in range(2):
        transcript, question = reflect(play, transcript)
        assert isinstance(question, Accept)
        takeover = play(transcript)
        assert isinstance(takeover, Write)
        assert takeover.criteria == StopCriteria(300)
        play(transcript)


@pytest.mark.parametrize(
    ("text", "mood"),
    [
        ("So 4.", 0),
        ("", 0),
        ("Yes.", 1),
        ("Wait.", -1),
        ("Yes, wait.", -1),  # a draw
        ("Yes, yes, wait.", 1),
        ("Let me check: 4. Yes.", -1),  # a verification counts as a reflection
        ("I am CONFIDENT that the final answer is 4", 1),
        ("Hold on, is there another way?", -1),
        ("MOMENT MAL, 2", -1),
    ],
)
def test_the_mood_of_a_sentence(text: str, mood: int) -> None:
    words = (*SpeculativeThinking().reflection, "Moment mal")  # compared in small letters
    assert SpeculativeThinking(reflection=words)._mood(text) == mood


@pytest.mark.parametrize(
    ("off", "text"),
    [
        ({"affirmation": ()}, "Yes."),
        ({"reflection": ()}, "Wait."),
        ({"verification": ()}, "Check."),
        (SILENT, "Wait. Yes. Check."),
    ],
)
def test_words_of_an_empty_list_tell_nothing(off: dict[str, Any], text: str) -> None:
    probe = draft(text)
    assert Play(**off)(probe) == Accept(AFTER_ONE, probe.segment)


@pytest.mark.parametrize(
    ("probe", "large", "kept"),
    [
        ("Wait, 2", "So 4", "large"),
        ("Wait, 2", "Yes, 4", "large"),
        ("Yes, 4", "Wait, 2", "large"),
        ("Wait, 2", "Hold on", "small"),
        ("Yes, 4", "So 4", "small"),
        ("Yes, 4", "Yes, 4", "small"),
    ],
)
def test_the_large_model_need_not_be_chosen(probe: str, large: str, kept: str) -> None:
    play = Play(choose_large=False)
    small = draft(probe)
    assert play(small) == Generate("large", AFTER_ONE, StopCriteria(20))
    other = draft(large, author="large")
    chosen, dropped = (other, small) if kept == "large" else (small, other)
    assert play(other) == Reject(dropped.segment)
    assert play(None) == Accept(AFTER_ONE, chosen.segment)


# --- small models that do not reason -------------------------------------------------------------


def test_the_large_model_may_begin() -> None:
    play = Play(START, begin=100)
    assert play.opening == Write("large", START, StopCriteria(100))
    transcript = more(START, "large", "We are asked for")
    assert play(transcript) == Write("small", transcript, PARAGRAPH)


def test_taking_over_at_every_delimiter_needs_no_probe() -> None:
    play = Play(every_delimiter=True)
    assert play.first == Write("large", AFTER_ONE, StopCriteria(20))
    after = more(AFTER_ONE, "large", "So 4 plus")
    assert play(after) == Write("small", after, PARAGRAPH)


def test_at_every_delimiter_the_probe_may_still_win() -> None:
    play = Play(every_delimiter=True, choose_large=False)
    probe, other = draft("So 4"), draft("Wait", author="large")
    assert isinstance(play(probe), Generate)
    assert play(other) == Reject(other.segment)
    assert play(None) == Accept(AFTER_ONE, probe.segment)


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_large_model_that_dies_between_probe_and_takeover(error: Exception) -> None:
    play = Play()
    play(draft("Wait, 2"))
    play(None)
    assert play(error) == Write("small", AFTER_ONE, PARAGRAPH)
    assert isinstance(play(more(AFTER_ONE, "small", "Wait, 4.\n\n")), Generate)


def test_a_large_model_that_dies_after_the_check_sentence() -> None:
    play = Play(patience=1)
    transcript, question = reflect(play, AFTER_ONE)
    assert isinstance(question, Accept)
    transcript = transcript.extend(question.segment)
    play(transcript)
    assert play(GONE) == Write("small", transcript, PARAGRAPH)


def test_a_large_model_that_dies_before_it_can_be_chosen() -> None:
    play = Play(choose_large=False)
    probe = draft("Wait, 2")
    play(probe)
    assert play(GONE) == Accept(AFTER_ONE, probe.segment)


def test_a_small_model_that_dies_leaves_the_paragraph_to_the_large() -> None:
    play = Play(START)
    assert play(GONE) == Write("large", START, PARAGRAPH)
    play = Play()
    assert play(GONE) == Write("small", AFTER_ONE, PARAGRAPH)  # perhaps again
    assert play(GONE) == Write("large", AFTER_ONE, PARAGRAPH)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


@pytest.mark.parametrize("replies", [[], [draft("Wait, 2"), None]])
def test_what_a_worker_can_never_do_is_told(replies: list[Any]) -> None:
    play = Play()
    for reply in replies:
        play(reply)
    with pytest.raises(Unsupported):
        play(Unsupported("no continuation"))


@pytest.mark.parametrize("finish", ["eos", "think_end"])
def test_an_end_inside_a_discarded_probe_ends_nothing(finish: Finish) -> None:
    play = Play()
    probe = draft("Yes, the final answer is 4.", finish)
    assert play(probe) == Reject(probe.segment)
    assert play(None) == Write("large", AFTER_ONE, StopCriteria(20))


@pytest.mark.parametrize("finish", ["eos", "think_end"])
@pytest.mark.parametrize("text", ["So 4.", ""])
def test_a_neutral_probe_may_end_the_thought(text: str, finish: Finish) -> None:
    play = Play()
    probe = draft(text, finish)
    assert play(probe) == Accept(AFTER_ONE, probe.segment)
    assert writes(play(replace(AFTER_ONE, closed=True)), "small")


def test_a_probe_with_nothing_in_it_is_left_to_writing() -> None:
    """No room, or half a character: Accept would take it for the end of the context."""
    assert Play()(draft("")) == Write("small", AFTER_ONE, PARAGRAPH)


def test_a_takeover_that_ends_the_thought_is_the_last() -> None:
    play = Play()
    play(draft("Wait, 2"))
    play(None)
    closed = replace(more(AFTER_ONE, "large", "Check: 4."), closed=True)
    assert play(closed) == Write("large", closed, REST)  # the answer, not 125 tokens of it


def test_the_papers_values_are_the_defaults() -> None:
    policy = SpeculativeThinking()
    assert (policy.n1, policy.n2, policy.n3, policy.patience) == (20, 125, 125, 15)
    assert (policy.n3_growth, policy.n3_max) == (25, 200)
    assert (policy.patience_growth, policy.patience_max) == (5, 30)


# --- in the step loop ----------------------------------------------------------------------------


STORY = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


@pytest.mark.parametrize("parameters", [{}, SILENT])
async def test_a_small_model_that_never_hesitates_is_alone(parameters: dict[str, Any]) -> None:
    large = Scripted()
    ended = await run(SpeculativeThinking(n1=3, **parameters), Scripted(story=STORY), large)
    assert said(ended) == STORY
    assert large.calls == []
    assert (ended.metrics.large_tokens, ended.metrics.discarded_tokens) == (0, 0)
    assert not ended.transcript.forced


async def test_discarded_probes_are_counted_and_the_pen_comes_back_in_mid_sentence() -> None:
    small = Scripted(["2+2 is 4.\n\n", "Wait, is it", "6.\n\n", "so it's 6.", "It is six."])
    large = Scripted(["and 2 more is 6, I think"])
    ended = await run(SpeculativeThinking(n1=4), small, large)
    assert said(ended) == ("2+2 is 4.\n\nand 2 more is 6.\n\nso it's 6.", "It is six.")
    assert [(step.author, step.accepted) for step in ended.steps] == [
        ("small", True),
        ("small", False),
        ("large", True),
        ("small", True),
        ("small", True),
        ("small", True),
    ]
    assert (ended.metrics.discarded_tokens, ended.metrics.large_tokens) == (3, 4)


async def test_the_check_sentence_is_the_policys_and_costs_no_tokens() -> None:
    small = Scripted(["2+2 is 5.\n\n", "Wait, 2", "6.", "It is six."])
    large = Scripted([Say("Wait, no.\n\n", "length"), Say("2+2 is 4, and 2 ", "length")])
    policy = SpeculativeThinking(n1=2, n3=5, patience=1, check="Let me look again: ")
    ended = await run(policy, small, large)
    text = "2+2 is 5.\n\nWait, no.\n\nLet me look again: 2+2 is 4, and 2"
    assert ended.transcript.text.startswith(text)
    (inserted,) = (step for step in ended.steps if step.author == "policy")
    assert (inserted.tokens, inserted.accepted) == (0, True)


async def test_a_thought_that_never_ends_stops_at_the_budget() -> None:
    numbers = count()

    def line(transcript: Transcript, criteria: StopCriteria) -> str:
        if transcript.closed:
            return "It is six."
        return "".join(f"Wait, and check {next(numbers)}.\n\n" for _ in range(9))

    policy = SpeculativeThinking(n1=3, n2=4, n3=5, patience=2, budget=60)
    ended = await run(policy, Scripted(line), Scripted(line))
    assert (ended.transcript.forced, ended.transcript.thought.tokens) == (True, 60)
    assert "Let me check" in ended.transcript.text


@pytest.mark.parametrize("early", [Say("", "think_end"), Say("4.", "eos")])
async def test_a_thought_that_ends_too_early_is_answered(early: Say) -> None:
    small = Scripted([early, "It is six."])
    ended = await run(SpeculativeThinking(), small, Scripted())
    assert said(ended) == (early.text, "It is six.")
    assert not ended.transcript.forced


@pytest.mark.parametrize("budget", range(1, 20))
async def test_no_budget_is_overdrawn(budget: int) -> None:
    story = ("2+2 is 5.\n\nWait, 2+2 is 4.\n\nYes, and check: 6.\n\nso it is 6.", "It is six.")
    policy = SpeculativeThinking(n1=3, n2=4, n3=2, patience=1, budget=budget)
    ended = await run(policy, Scripted(story=story), Scripted(story=story))
    assert ended.transcript.thought.tokens <= budget
    assert said(ended)[1] == "It is six."


# --- on the embedded pair ------------------------------------------------------------------------

ARGS = load(DEFAULT_FILE).args


async def test_a_model_that_helps_itself_says_what_it_says_alone(embedded: Worker) -> None:
    """Committed probes, probes thrown away, takeovers: greedily all of it is the same text."""
    asked = [problem.question for problem in draw("dev", 7, 4)]
    called = 0
    for choose_large in (True, False):
        policy = SpeculativeThinking(n1=7, n2=9, patience=None, choose_large=choose_large)
        for question in asked:
            alone = await run(SmallOnly(), embedded, embedded, question)
            ended = await run(policy, embedded, embedded, question)
            assert said(ended) == said(alone)
            called += ended.metrics.large_tokens
    assert called > 0


async def test_the_deployment_files_values_suit_the_pairs_chains(embedded: Worker) -> None:
    policy = ARGS.policy.policy("speculative-thinking")
    authors: set[str] = set()
    for problem in draw("dev", 7, 8):
        ended = await run(policy, embedded, embedded, problem.question)
        authors |= {part.author for part in ended.transcript.thought}
        assert said(ended)[1].startswith("The answer is")
    assert {"small", "large"} <= authors
