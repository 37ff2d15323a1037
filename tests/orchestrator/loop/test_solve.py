"""The step loop against scripted workers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from orchestrator.errors import (
    BatonError,
    ConfigError,
    ContextLengthExceeded,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.loop import executor
from orchestrator.loop.accumulator import Failure, ResponseAccumulator
from orchestrator.loop.actions import Accept, Close, Reject, Script, WorkerName, Write
from orchestrator.loop.budget import spent
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.types import (
    Generation,
    Limits,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from policies.bild import BiLD
from policies.coin import Coin
from policies.single import LargeOnly, SmallOnly
from policies.specreason import SpecReason
from policies.speculative_thinking import SpeculativeThinking
from policies.steps import write_out
from tests.orchestrator.loop.solving import (
    GONE,
    LARGE,
    SMALL,
    HeldReader,
    Workers,
    answer,
    heard,
    pair,
    shown,
    start,
)
from tests.orchestrator.waiting import until
from tests.workers.scripted import Say, Scripted, words


async def run(*args: Any, **kwargs: Any) -> tuple[list[Event], RequestCompleted]:
    """As `heard`, and check that nothing but the transcript is shown."""
    events, ended = await heard(*args, **kwargs)
    assert sum(isinstance(event, StepCompleted) for event in events) == len(ended.steps)
    for phase, said in (("thought", ended.transcript.thought), ("answer", ended.transcript.answer)):
        assert shown(events, phase) == said.text()
    return events, ended


def scripted_policy(body: Callable[[Transcript], Script[None]], *names: WorkerName) -> Policy:
    class Own(Policy):
        workers = frozenset(names or ("small", "large"))

        def solve(self, transcript: Transcript) -> Script[None]:
            return body(transcript)

    return Own()


# --- what the policies give ----------------------------------------------------------------------


@pytest.mark.parametrize("answer_by", ["large", "active"])
async def test_a_threshold_beyond_9_gives_what_the_large_alone_gives(answer_by: Any) -> None:
    _, alone = await run(LargeOnly(), pair())
    _, ended = await run(SpecReason(threshold=9.1, answer_by=answer_by), pair())
    assert (ended.transcript.text, answer(ended)) == (alone.transcript.text, answer(alone))
    assert ended.metrics.acceptance_rate == 0
    assert ended.metrics.discarded_tokens == ended.metrics.small_tokens > 0


# --- order, budget, seeds ------------------------------------------------------------------------


async def test_a_write_is_streamed_while_it_is_made() -> None:
    large = Scripted(story=LARGE)
    async with aclosing(start(LargeOnly(), {"large": large})) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
        assert event == TextDelta("large", "thought", "2+2 ", 1)
        assert large.live == 1  # it goes on writing
    assert large.live == 0


async def test_each_event_is_folded_once_and_not_kept() -> None:
    seen = list[type]()

    class Watched(ResponseAccumulator):
        def add(self, event: Any) -> Any:
            seen.append(type(event))
            return super().add(event)

    response = Watched()
    kept = actions_alive()
    events = [type(event) async for event in start(SpecReason(), pair(), response=response)]
    assert seen == events
    assert {TextDelta, StepCompleted, ActionCompleted, RequestCompleted} == set(seen)
    assert actions_alive() == kept  # each would hold a whole transcript
    assert response.completed is not None


def actions_alive() -> int:
    gc.collect()
    return sum(type(one) is ActionCompleted for one in gc.get_objects())


@pytest.mark.parametrize("budget", [1, 3, 7])
async def test_at_the_budget_the_thought_is_closed_and_answered(budget: int) -> None:
    for policy in (LargeOnly(budget=budget), SpecReason(budget=budget)):
        _, ended = await run(policy, pair())
        assert ended.transcript.thought.tokens == budget
        assert (ended.transcript.forced, ended.transcript.finish) == (True, "stop")
        assert answer(ended) == LARGE[1]


@pytest.mark.parametrize(
    "policy",
    [
        LargeOnly(),
        SmallOnly(),
        SpecReason(),
        SpecReason(threshold=10),
        BiLD(window=2),
        SpeculativeThinking(),
    ],
)
async def test_max_tokens_cuts_what_does_not_fit_and_nothing_else(policy: Policy) -> None:
    _, whole = await run(policy, pair())
    need = spent(whole.transcript)
    assert need == whole.transcript.thought.tokens + whole.transcript.answer.tokens + 2  # two ends
    for max_tokens in range(1, need + 12):
        _, ended = await run(policy, pair(), limits=Limits(max_tokens=max_tokens))
        transcript = ended.transcript
        assert transcript.done
        assert spent(transcript) <= max_tokens
        if max_tokens >= need:
            assert transcript == whole.transcript
        else:
            assert transcript.finish == "length"
            if transcript.forced and max_tokens > 1:
                assert answer(ended)  # a short one, in what the thought gave up


async def test_what_is_held_back_shows_when_the_thought_ends() -> None:
    thought, size = LARGE[0], len(words(LARGE[0]))
    policy = LargeOnly(answer_reserve=4)
    events, ended = await run(policy, pair(), limits=Limits(max_tokens=size + 2))
    shown = [e.text for e in events if isinstance(e, TextDelta) and e.phase == "thought"]
    assert (ended.transcript.text, ended.transcript.forced) == (thought, False)
    assert shown == [*words(thought)[: size - 2], "".join(words(thought)[size - 2 :])]


async def test_a_draft_that_leaves_no_room_for_an_answer_is_given_up() -> None:
    _, ended = await run(SpecReason(), pair(), limits=Limits(max_tokens=5))
    thought = [step for step in ended.steps if step.phase == "thought"]
    assert [(step.text, step.accepted, step.given_up) for step in thought] == [
        ("2+2 is 5.\n\n", True, False),
        ("and 2 ", False, True),
    ]
    assert (ended.transcript.text, ended.transcript.finish) == ("2+2 is 5.\n\n", "length")
    assert (ended.metrics.discarded_tokens, ended.metrics.acceptance_rate) == (2, 0.5)


async def test_what_is_held_back_of_small_pieces_shows_when_the_thought_ends() -> None:
    events, ended = await run(BiLD(window=2), pair(scores=[9]), limits=Limits(max_tokens=14))
    assert (ended.transcript.text, ended.transcript.forced) == (LARGE[0], False)
    told, late = 0, []
    for place, event in enumerate(events):
        if isinstance(event, TextDelta) and event.phase == "thought":
            told += len(words(event.text))
            late += [place] if told > 7 else []  # of 14 tokens half may be given up
    calls = [n for n, e in enumerate(events) if isinstance(e, ActionCompleted) and e.ms]
    assert (told, len(late)) == (12, 4)
    assert not any(late[0] < call < late[-1] for call in calls)
    steps = [step.text for step in ended.steps if step.accepted and step.phase == "thought"]
    assert "".join(steps) == LARGE[0]


@pytest.mark.parametrize("scores", [[0.0], [9.0]])
async def test_small_pieces_are_given_up_for_an_answer_too(scores: list[float]) -> None:
    whole = len(words(LARGE[0]))
    for max_tokens in range(2, whole + 1):
        _, ended = await run(
            BiLD(window=2), pair(scores=scores), limits=Limits(max_tokens=max_tokens)
        )
        room = max_tokens // 2
        assert ended.transcript.thought.tokens <= max_tokens - room
        assert min(room, 3) <= len(words(answer(ended)))
        assert spent(ended.transcript) <= max_tokens
        kept = sum(step.tokens for step in ended.steps if step.accepted)
        assert kept == ended.transcript.thought.tokens + ended.transcript.answer.tokens


async def test_a_policys_own_words_are_given_up_as_well() -> None:
    """Speculative Thinking puts a sentence in; scripted here, as it takes a long thought."""

    def body(transcript: Transcript) -> Script[None]:
        while transcript.is_open:
            transcript = yield from Accept(transcript, Segment("policy", "Let me check. "))
            transcript = yield from Write("large", transcript, StopCriteria(3))
        yield from write_out(transcript, "large")

    _, ended = await run(scripted_policy(body), pair(), limits=Limits(max_tokens=10))
    assert (ended.transcript.forced, ended.transcript.finish) == (True, "length")
    assert answer(ended)


async def test_a_budget_just_below_max_tokens_leaves_room_for_an_answer() -> None:
    size = len(words(LARGE[0]))
    for policy in (LargeOnly(budget=size - 1), BiLD(budget=size - 1, window=2)):
        _, ended = await run(policy, pair(), limits=Limits(max_tokens=size))
        assert ended.transcript.thought.tokens <= size // 2
        assert (answer(ended), ended.transcript.finish) == (LARGE[1], "length")


async def test_an_answer_may_be_followed_by_a_remark() -> None:
    remarks = {LARGE[1]: " Ask a real model.", "It": " Ask."}
    events, ended = await run(LargeOnly(), pair(), remarks=remarks)
    assert answer(ended) == f"{LARGE[1]} Ask a real model."
    assert [one.author for one in ended.transcript.answer] == ["large", "policy"]
    assert isinstance(events[-2], TextDelta)
    _, other = await run(SmallOnly(), pair(), remarks=remarks)
    assert answer(other) == SMALL[1]
    for cut in (Limits(stop=(" is",)), Limits(max_tokens=spent(ended.transcript) - 1)):
        _, short = await run(LargeOnly(), pair(), limits=cut, remarks=remarks)
        assert "Ask" not in answer(short)


def seeds(worker: Scripted) -> list[int | None]:
    found = (next((a for a in one.args if isinstance(a, Sampling)), None) for one in worker.calls)
    return [sampling.seed for sampling in found if sampling is not None]


async def test_a_request_seed_fixes_those_of_its_calls() -> None:
    drawn = []
    for seed in (5, 5, 6, None, None):
        workers = pair(scores=[3])
        await run(SpecReason(), workers, sampling=Sampling(temperature=0.6, seed=seed))
        drawn.append((*seeds(workers["small"]), *seeds(workers["large"])))
    assert drawn[0] == drawn[1]
    assert len({*drawn}) == 4
    workers = pair()
    await run(LargeOnly(), workers)
    assert seeds(workers["large"]) == [None, None]  # greedy needs none


async def test_a_text_that_goes_on_behind_the_workers_own_has_its_seed() -> None:
    """Workers draw by seed and position: what takes the place of a draft needs another seed."""
    sampling = Sampling(temperature=0.6, seed=5)
    rejected, accepted = pair(scores=[3]), pair(scores=[9])
    await run(SpecReason(), rejected, sampling=sampling)
    await run(SpecReason(), accepted, sampling=sampling)
    assert len(set(seeds(rejected["small"]))) == 3  # each draft is replaced
    first, second, third, answer = seeds(rejected["large"])
    assert first == second == third != answer
    (kept,) = set(seeds(accepted["small"]))
    assert kept not in seeds(accepted["large"])


@pytest.mark.virtual_time
async def test_waiting_for_one_workers_prompt_is_not_the_others_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, workers = [0.0], pair()
    monkeypatch.setattr(executor, "perf_counter", lambda: now[0])
    workers["large"] = large = HeldReader(story=LARGE)
    task = asyncio.create_task(run(SpecReason(), workers))
    await until(lambda: workers["small"].calls and not workers["small"].live)
    await asyncio.sleep(0.01)  # its draft waits for the large model, which reads for a minute
    now[0] = 60.0
    large.let.set()
    _, ended = await task
    assert ended.metrics.ms["small"] == 0


# --- failures ------------------------------------------------------------------------------------


async def follow(events: Any, seen: asyncio.Queue[Event]) -> None:
    async with aclosing(events):
        async for event in events:
            seen.put_nowait(event)


@pytest.mark.parametrize("policy", [SpecReason(), SpeculativeThinking()])
async def test_the_small_model_drafts_while_the_large_one_reads_the_prompt(policy: Policy) -> None:
    workers = pair()
    workers["large"] = large = HeldReader(story=LARGE, scores=[9])
    seen: asyncio.Queue[Event] = asyncio.Queue()
    task = asyncio.create_task(follow(start(policy, workers), seen))
    await until(lambda: workers["small"].calls)
    assert seen.empty()  # nothing is shown that the large model's prompt may yet refuse
    large.let.set()
    await task
    events = [seen.get_nowait() for _ in range(seen.qsize())]
    assert [event.action.worker for event in events[:2]] == ["large", "small"]
    assert large.early == 0  # nor is it called before it has read
    assert isinstance(events[-1], RequestCompleted)


async def test_a_prompt_that_one_worker_refuses_late_ends_the_request_unshown() -> None:
    workers = {"small": Scripted(story=SMALL, delay=10)}  # nor does it wait for the first action
    workers["large"] = large = HeldReader(story=LARGE, context=2)
    seen: asyncio.Queue[Event] = asyncio.Queue()
    task = asyncio.create_task(follow(start(SpeculativeThinking(), workers), seen))
    await until(lambda: workers["small"].live)
    large.let.set()
    with pytest.raises(ContextLengthExceeded):
        await task
    assert seen.empty()
    assert workers["small"].live == large.live == 0


async def test_workers_that_are_all_down_are_asked_once() -> None:
    asked = 0

    class Down(Scripted):
        async def generate(self, *args: Any, **kw: Any) -> Any:
            nonlocal asked
            asked += 1
            raise GONE
            yield

    with pytest.raises(WorkerUnavailable):
        await run(SpecReason(), {"small": Down(), "large": Down()})
    assert asked == 2


async def test_a_request_that_is_left_while_a_prompt_is_read_leaves_nothing_behind() -> None:
    workers = pair()
    workers["large"] = large = HeldReader(story=LARGE)
    events = start(SpecReason(), workers)
    task = asyncio.create_task(anext(events))
    await until(lambda: workers["small"].calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await events.aclose()
    assert workers["small"].live == large.live == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_prompt_beyond_a_context_is_refused_before_anything_is_shown() -> None:
    workers = pair(context=3)
    with pytest.raises(ContextLengthExceeded):
        await run(SpecReason(), workers)
    assert workers["small"].live == workers["large"].live == 0


async def test_a_trace_that_outgrows_the_context_ends_by_length() -> None:
    _, ended = await run(LargeOnly(), pair(context=16))
    assert (answer(ended), ended.transcript.finish) == ("It is six.", "stop")
    _, ended = await run(LargeOnly(), pair(context=15))
    assert (answer(ended), ended.transcript.finish) == ("", "length")
    _, ended = await run(SpecReason(threshold=9.1), pair(context=7))
    assert ended.transcript.finish == "length"
    assert (
        ended.transcript.text == "2+2 is 4.\n\nand 2 more is 6.\n\n"[: len(ended.transcript.text)]
    )


async def test_a_thought_that_outgrows_one_context_is_answered_by_the_model_that_has_room() -> None:
    for policy, finish in (
        (Coin(large_probability=0), "stop"),  # the thought has ended when the large model is asked
        (SpecReason(threshold=0, answer_by="small"), "length"),  # nobody can judge, nor write
    ):
        _, ended = await run(policy, pair(context=9, scores=[9] * 8))
        assert (answer(ended), ended.transcript.finish) == (SMALL[1], finish)
        assert {segment.author for segment in ended.transcript.answer} == {"small"}
    _, ended = await run(LargeOnly(), pair(context=9))
    assert (answer(ended), ended.transcript.finish) == ("", "length")


async def test_an_answer_without_a_thought_that_outgrows_one_context_goes_on() -> None:
    small = Scripted(story=("", SMALL[0]), thinks=False)
    large = Scripted(story=("", LARGE[0]), thinks=False, context=9, scores=[9] * 8)
    workers: Workers = {"small": small, "large": large}
    _, ended = await run(SpecReason(threshold=0), workers)
    written = [(step.author, step.text) for step in ended.steps if step.accepted]
    assert written[-2:] == [("large", "and 2 more is 6.\n\n"), ("small", "so it is 7.")]
    assert ended.transcript.finish == "stop"


async def test_a_model_that_dies_while_it_answers_for_a_full_one_is_an_error() -> None:
    for small in ({"failures": dict.fromkeys(range(3, 20), GONE)}, {"deaths": {3: 1, 4: 0}}):
        workers = pair(context=9)
        workers["small"] = Scripted(story=SMALL, **small)
        with pytest.raises(WorkerUnavailable):
            await run(Coin(large_probability=0), workers)


async def test_an_answer_that_fills_a_context_ends_by_length_if_the_other_is_down() -> None:
    class LargeOrSmall(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            while not transcript.done:  # the large model, or five words of the small one
                try:
                    transcript = yield from Write("large", transcript, StopCriteria(5))
                except WorkerUnavailable:
                    transcript = yield from Write("small", transcript, StopCriteria(5))

    story = ("", SMALL[0])
    small = Scripted(story=story, thinks=False, context=9)
    large = Scripted(story=story, thinks=False, failures=dict.fromkeys(range(40), GONE))
    _, ended = await run(LargeOrSmall(), {"small": small, "large": large})
    assert answer(ended)
    assert SMALL[0].startswith(answer(ended))
    assert ended.transcript.finish == "length"


async def test_a_worker_that_dies_while_writing_is_asked_for_the_rest() -> None:
    large = Scripted(story=LARGE, deaths={0: 4, 2: 1})
    _, ended = await run(LargeOnly(), {"large": large})
    assert (ended.transcript.text, answer(ended)) == LARGE
    assert ended.transcript.thought[0].text == "2+2 is 4.\n\nand "
    assert len(ended.transcript.thought) == len(ended.transcript.answer) == 2


async def test_a_worker_that_stays_dead_ends_the_request() -> None:
    for failures in ({0: GONE}, {1: GONE}):  # in the thought, in the answer
        large = Scripted(story=LARGE, failures=failures)
        with pytest.raises(WorkerUnavailable):
            await run(LargeOnly(), {"large": large})
        assert large.live == 0


async def test_deaths_in_each_phase_of_specreason() -> None:
    dead = Scripted(down=GONE)  # preflight included
    for small, large in (
        (dead, Scripted(story=LARGE)),
        (Scripted(story=LARGE, deaths={0: 2, 1: 1}), Scripted(story=LARGE)),
        (Scripted(story=SMALL), Scripted(story=LARGE, scores=[GONE])),
    ):
        _, ended = await run(SpecReason(), {"small": small, "large": large})
        assert (ended.transcript.text, answer(ended)) == LARGE
    assert [step.accepted for step in ended.steps if step.author == "small"] == [False] * 3
    _, ended = await run(SpecReason(), pair(scores=[0], deaths={1: 2}))
    assert ended.transcript.text.startswith("2+2 is ")
    answering = pair()
    answering["small"] = Scripted(story=SMALL, deaths={3: 1})
    _, ended = await run(SpecReason(answer_by="small"), answering)
    assert answer(ended).startswith("It ")
    assert ended.transcript.answer[-1].author in ("small", "large")
    with pytest.raises(WorkerUnavailable):
        await run(SpecReason(), {"small": Scripted(story=SMALL), "large": Scripted(down=GONE)})


@pytest.mark.parametrize(
    ("small", "large", "failure"),
    [
        ({}, {"scores": [GONE]}, Failure("large", "judge", "unavailable")),
        ({"down": GONE}, {}, Failure("small", "generate", "unavailable")),
        # It dies after two tokens that show.
        ({}, {"scores": [0], "deaths": {1: 2}}, Failure("large", "generate", "unavailable")),
    ],
)
async def test_an_answer_made_without_a_worker_says_so_or_is_refused(
    small: dict[str, Any], large: dict[str, Any], failure: Failure
) -> None:
    def workers() -> Workers:
        return pair(**large) | {"small": Scripted(story=SMALL, **small)}

    response = ResponseAccumulator()
    await run(SpecReason(), workers(), response=response)
    assert failure in response.failures
    with pytest.raises(WorkerUnavailable):
        await run(SpecReason(), workers(), limits=Limits(complete=True))
    response = ResponseAccumulator()
    await run(SpecReason(), pair(), limits=Limits(complete=True), response=response)
    assert response.failures == []


async def test_a_worker_that_writes_the_rest_itself_was_not_missing() -> None:
    for policy, large in (
        (LargeOnly(), Scripted(story=LARGE, deaths={0: 4, 2: 1})),
        (SpecReason(first_n=2), Scripted(story=LARGE, deaths={0: 1})),
    ):
        response = ResponseAccumulator()
        workers: Workers = {"small": Scripted(story=SMALL), "large": large}
        await run(policy, workers, limits=Limits(complete=True), response=response)
        assert response.failures == []


async def test_an_answer_broken_off_within_a_form_says_what_broke_it_off() -> None:
    class Server(Scripted):
        """It does not hold an answer to its form, and goes on within none."""

        async def generate(self, call: Any, *args: Any, **kw: Any) -> Any:
            begun = call.transcript.answer.text()
            if begun:
                raise Unsupported("going on within an answer")
            async for item in super().generate(call, *args, **kw):
                if isinstance(item, Generation) and call.transcript.closed:
                    raise WorkerError("it did not hold its answer")
                yield item

    with pytest.raises(WorkerError, match="did not hold"):
        await run(LargeOnly(), {"large": Server(story=LARGE)})


async def test_no_room_or_no_worker() -> None:
    full = Scripted(down=Overloaded("full"))
    with pytest.raises(Overloaded):
        await run(SpecReason(), {"small": full, "large": Scripted(story=LARGE)})
    with pytest.raises(ConfigError, match="large"):
        await run(SpecReason(), {"small": Scripted()})


async def test_policies_that_break_the_rules() -> None:
    def stops_early(transcript: Transcript) -> Script[None]:
        yield from Close(transcript)

    def forks(transcript: Transcript) -> Script[None]:
        yield from Accept(transcript, Segment("policy", "a"))
        yield from Accept(transcript, Segment("policy", "b"))

    def spins(transcript: Transcript) -> Script[None]:
        while True:
            yield from Reject(Segment("policy", ""))

    for body in (stops_early, forks, spins):
        with pytest.raises(BatonError):
            await run(scripted_policy(body), pair())


async def test_a_bug_in_a_worker_is_not_hidden() -> None:
    class Broken(Scripted):
        async def classify(self, *args: Any, **options: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(SpecReason(), {"small": Scripted(story=SMALL), "large": Broken(story=LARGE)})


async def test_a_stream_that_breaks_off_counts_as_a_dead_worker() -> None:
    class Mute(Scripted):
        async def generate(
            self, call: Any, criteria: StopCriteria, *args: Any, **kw: Any
        ) -> AsyncIterator[Any]:
            if criteria.max_tokens == 0:
                async for item in super().generate(call, criteria, *args, **kw):
                    yield item

    _, ended = await run(SpecReason(), {"small": Mute(), "large": Scripted(story=LARGE)})
    assert (ended.transcript.text, answer(ended)) == LARGE


# --- models without a thought ---------------------------------------------------------------------

PLAIN = ("", "2+2 is 4.\n\nand 2 more is 6.\n\nIt is six.")
WRONG = ("", "2+2 is 5.\n\nand 2 more is 7.\n\nIt is seven.")


def plain_pair(**large: Any) -> Workers:
    return {
        "small": Scripted(story=WRONG, thinks=False),
        "large": Scripted(story=PLAIN, thinks=False, **large),
    }


async def test_without_a_thought_the_steps_are_the_answer() -> None:
    def scores(transcript: Transcript) -> float:
        return 9.0 if len(transcript.answer) > 1 else 2.0

    events, ended = await run(SpecReason(), plain_pair(scores=scores))
    transcript = ended.transcript
    assert not transcript.thinking
    assert transcript.thought == ()
    assert transcript.text == "2+2 is 4.\n\nand 2 more is 7.\n\nIt is seven."
    assert (transcript.finish, transcript.forced, transcript.done) == ("stop", False, True)
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert {text.phase for text in texts} == {"answer"}
    assert "".join(text.text for text in texts) == transcript.text
    assert [(step.author, step.accepted) for step in ended.steps] == [
        ("small", False),
        ("large", True),
        ("small", True),
        ("small", True),
    ]


async def test_one_thinking_model_is_enough_for_a_thought() -> None:
    workers = pair()
    workers["small"].thinks = False
    _, ended = await run(SpecReason(), workers)
    assert ended.transcript.thinking
    assert ended.transcript.answer[-1].text == "It is six."
    _, ended = await run(SmallOnly(), plain_pair() | {"large": Scripted(story=LARGE)})
    assert not ended.transcript.thinking


async def test_a_turn_that_ends_inside_the_thought_is_answered_all_the_same() -> None:
    large = Scripted([Say("So it is 4.", "eos"), "Four."])
    _, ended = await run(LargeOnly(), {"large": large})
    assert (ended.transcript.text, ended.transcript.answer[-1].text) == ("So it is 4.", "Four.")
    assert (ended.transcript.finish, ended.transcript.forced) == ("stop", False)


async def test_a_stop_string_is_not_found_in_what_no_model_wrote() -> None:
    """ "Answer: " begins the answer for a model that wanted to end behind its thought."""
    large = Scripted([Say("It is 4.", "think_end"), Say("", "eos"), "Four: 4."])
    _, ended = await run(LargeOnly(), {"large": large}, limits=Limits(stop=(":",)))
    assert answer(ended) == "Answer: Four"
    assert ended.transcript.finish == "stop"
    large = Scripted([Say("It is 4.", "think_end"), Say("\n\n", "eos"), "Four."])
    events = start(LargeOnly(), {"large": large}, limits=Limits(stop=("X",)))
    shown = [e.text async for e in events if isinstance(e, TextDelta) and e.phase == "answer"]
    assert "".join(shown) == "Answer: Four."  # white space before an answer is not shown


async def test_an_empty_turn_is_an_empty_answer() -> None:
    _, ended = await run(LargeOnly(), {"large": Scripted([Say("", "eos")], thinks=False)})
    assert (ended.transcript.answer, ended.transcript.finish) == ((), "stop")


async def test_a_loop_without_a_thought_is_cut_and_says_length() -> None:
    same = Scripted(lambda transcript, criteria: Say("Again.\n\n", "until"), thinks=False)
    _, ended = await run(SpecReason(), {"small": same, "large": Scripted(thinks=False)})
    transcript = ended.transcript
    assert transcript.text == "Again.\n\n" * 171
    assert (transcript.finish, transcript.forced, transcript.done) == ("length", True, True)


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_cap_that_an_answer_without_a_thought_fits_in_changes_nothing(spare: int) -> None:
    size = len(words(PLAIN[1]))
    _, ended = await run(LargeOnly(), plain_pair(), limits=Limits(size + 1 + spare))
    assert (ended.transcript.text, ended.transcript.finish) == (PLAIN[1], "stop")
    _, ended = await run(LargeOnly(budget=2), plain_pair(), limits=Limits(size))
    assert (ended.transcript.answer.tokens, ended.transcript.finish) == (size, "length")


async def test_a_stop_string_ends_an_answer_made_of_steps() -> None:
    _, ended = await run(SpecReason(), plain_pair(), limits=Limits(stop=("more",)))
    assert ended.transcript.text == "2+2 is 5.\n\nand 2 "
    assert ended.transcript.finish == "stop"


async def test_a_thought_without_an_answer_is_asked_for_one() -> None:
    lines = [Say("It is 4.", "think_end"), Say("", "eos"), Say("four.", "eos")]
    events, ended = await run(LargeOnly(), {"large": Scripted(lines)})
    answer = "".join(segment.text for segment in ended.transcript.answer)
    assert (answer, ended.transcript.forced) == ("Answer: four.", True)
    shown = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(text.text for text in shown if text.phase == "answer") == answer
    assert [step.author for step in ended.steps] == ["large", "policy", "large"]
    again = [Say("It is 4.", "think_end"), Say("", "eos"), Say("", "eos")]
    _, ended = await run(LargeOnly(), {"large": Scripted(again)})
    assert (ended.transcript.finish, ended.transcript.done) == ("stop", True)


@pytest.mark.parametrize("policy", [LargeOnly(budget=3), SpecReason(budget=3, threshold=10)])
async def test_a_thought_that_goes_on_behind_a_forced_close_is_answered(policy: Policy) -> None:
    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if not transcript.closed:
            return Say("one two three four five")
        return Say("42", "eos") if transcript.reply_start else Say("so 40 and 2", "think_end")

    response = ResponseAccumulator()
    workers: Workers = {"small": Scripted(line), "large": Scripted(line)}
    limits = Limits(stop=("2 and",))
    events, ended = await heard(policy, workers, response=response, limits=limits)
    transcript = ended.transcript
    assert (transcript.reply, response.answer, response.raw_answer) == ("42", "42", "42")
    assert (transcript.forced, transcript.finish, transcript.thought.tokens) == (True, "stop", 3)
    assert spent(transcript) == 3 + 4 + 1 + 1 + 1
    shown = [e.text for e in events if isinstance(e, TextDelta) and e.phase == "answer"]
    assert "".join(shown) == "so 40 and 2\n\n42"  # what a stream has shown stays
    assert [s.text for s in ended.steps if s.phase == "answer"] == ["so 40 and 2", "42"]
    twice = [Say("one two three four"), *[Say(text, "think_end") for text in ("a", "")], "b"]
    _, ended = await heard(LargeOnly(budget=2), {"large": Scripted(twice)})
    assert ended.transcript.reply == "Answer: b"


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        ("\n\nand", "2+2 is 4."),  # begins in a step, ends in the next
        ("6.\n\nIt", "2+2 is 4.\n\nand 2 more is "),
        ("2+2", ""),
        ("nowhere", PLAIN[1]),
    ],
)
async def test_a_stop_string_across_steps_is_never_shown(stop: str, left: str) -> None:
    def next_step(transcript: Transcript, criteria: StopCriteria) -> Say:
        rest = PLAIN[1][len(transcript.text) :]
        step, blank, _ = rest.partition("\n\n")
        return Say(step + blank, "until" if blank else "eos")

    both = Scripted(next_step, thinks=False)
    workers = {"small": both, "large": both}
    events, ended = await heard(SpecReason(), workers, limits=Limits(stop=(stop,)))
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert shown.rstrip() == left.rstrip()
    assert (ended.transcript.finish, ended.transcript.done) == ("stop", True)


async def test_what_stop_strings_hold_back_shows_where_the_context_ends_the_answer() -> None:
    both = Scripted(story=PLAIN, thinks=False, context=6)  # the question and the first step
    workers: Workers = {"small": both, "large": both}
    _, ended = await run(SpecReason(), workers, limits=Limits(stop=("4.\n\nor",)))
    assert (answer(ended), ended.transcript.finish) == ("2+2 is 4.\n\n", "length")


async def test_a_stop_string_across_segments_ends_the_call_that_completes_it() -> None:
    def body(transcript: Transcript) -> Script[None]:
        transcript = yield from Write("large", transcript, StopCriteria(3))
        yield from write_out(transcript, "large")

    large = Scripted([Say("2+2 is 4.\n\n", "length"), "and 2 more is 6."], thinks=False)
    policy = scripted_policy(body, "large")
    events, ended = await heard(policy, {"large": large}, limits=Limits(stop=("\n\nand",)))
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "2+2 is 4."
    assert (ended.transcript.text, ended.transcript.finish) == ("2+2 is 4.\n\nand ", "stop")
    assert (ended.metrics.large_tokens, large.live) == (4, 0)
