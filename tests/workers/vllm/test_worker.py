"""vLLM's engine answers as ours does, and reads of a prompt what a judge needs and no more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import nan
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError, VLLMValidationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import InvalidRequest, Overloaded, WorkerError
from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    Segments,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call
from workers.vllm.loading import CPU_CHUNK, load
from workers.vllm.requests import made_tokens, prompt_logprobs
from workers.vllm.running import Cost

QUESTION = Transcript((Message("user", "What is 12 + 34?"),))
GREEDY = Sampling()
DIGITS = tuple("0123456789")
GOOD = LabelQuery((Message("user", "Good?"),), "Score: ", DIGITS, nll=True)


def call(transcript: Transcript = QUESTION) -> Call:
    return Call("r1", transcript, "large")


async def written(
    worker: Any, transcript: Transcript, criteria: StopCriteria, sampling: Sampling = GREEDY
) -> Generation:
    items = [item async for item in worker.generate(call(transcript), criteria, sampling)]
    return items[-1]


@pytest.fixture
def asked(large: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """The outputs of requests that vLLM gets, and the requests that it is to abort."""
    engine, requests, aborted = large.backend.engine, list[Any](), list[Any]()
    generate, abort = engine.generate, engine.engine_core.abort_requests_async

    async def noted(*args: Any, **kwargs: Any) -> Any:
        requests.append([])
        async for output in generate(*args, **kwargs):
            requests[-1].append(output)
            yield output

    async def ended(names: list[str]) -> None:
        aborted.extend(names)
        await abort(names)

    monkeypatch.setattr(engine, "generate", noted)
    monkeypatch.setattr(engine.engine_core, "abort_requests_async", ended)
    return requests, aborted


def long_thought(worker: Any, steps: int = 30) -> Transcript:
    """A thought of several hundred tokens, as accepted segments."""
    transcript = QUESTION
    for i in range(steps):
        text = f"Step {i} says that {i} and {i + 1} give {2 * i + 1}.\n\n"
        transcript = transcript.extend(said(worker, text, "small"))
    return transcript


def said(worker: Any, text: str, author: Any = "large") -> Segment:
    ids = worker.tokenizer.encode(text)
    return Segment(author, text, ids, (0.0,) * len(ids), worker.tokenizer.hash)


def judged_step(worker: Any, steps: int = 30) -> tuple[Transcript, Call, Segment]:
    """A long thought; a call of the thought before its last step; and that step."""
    transcript = long_thought(worker, steps)
    *before, last = transcript.thought
    return transcript, call(Transcript(transcript.messages, Segments(before))), last


async def test_greedy_texts_and_scores_are_those_of_the_builtin_engine(
    large: Any, builtin: Any
) -> None:
    for problem in draw("dev", 7, 8):
        transcript = Transcript((Message("user", problem.question),))
        ours = await written(builtin, transcript, StopCriteria(120))
        theirs = await written(large, transcript, StopCriteria(120))
        assert theirs.segment.text == ours.segment.text
        assert theirs.segment.finish == ours.segment.finish
        assert theirs.segment.logprobs == pytest.approx(ours.segment.logprobs, abs=2e-3)
        judged = call(transcript.extend(ours.segment))
        a, b = await builtin.classify(judged, GOOD), await large.classify(judged, GOOD)
        assert b.probabilities == pytest.approx(a.probabilities, abs=2e-3)
        assert b.outside == pytest.approx(a.outside, abs=2e-3)
        assert b.nll == pytest.approx(a.nll, abs=2e-3)
        assert b.ending == (None if a.ending is None else pytest.approx(a.ending, abs=2e-3))
        a, b = [
            await one.verify(call(transcript), ours.segment, GREEDY) for one in (builtin, large)
        ]
        assert (b.choices, b.pieces) == (a.choices, a.pieces)
        assert [one.text for one in b.options] == [one.text for one in a.options]


@pytest.mark.parametrize(
    ("criteria", "finish"),
    [
        (StopCriteria(60, ("\n\n",)), "until"),
        (StopCriteria(60, stop=("4",)), "stop"),
        (StopCriteria(7), "length"),
        (StopCriteria(200), "think_end"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_an_end_that_is_a_token_is_vllms_and_no_pass_runs_on(
    large: Any,
    builtin: Any,
    asked: tuple[list[Any], list[Any]],
    criteria: StopCriteria,
    finish: str,
) -> None:
    ours = await written(builtin, QUESTION, criteria)
    theirs = await written(large, QUESTION, criteria)
    assert (theirs.segment.text, theirs.segment.tokens) == (ours.segment.text, ours.segment.tokens)
    assert theirs.segment.finish == ours.segment.finish == finish
    requests, aborted = asked
    assert (len(requests), aborted) == (1, [])


async def test_a_delimiter_that_ends_no_step_is_written_on_from(
    large: Any, builtin: Any, asked: tuple[list[Any], list[Any]]
) -> None:
    code = replace(said(large, "```\n"), finish="length")
    transcript, criteria = QUESTION.extend(code), StopCriteria(60, ("\n\n",))
    ours = await written(builtin, transcript, criteria)
    theirs = await written(large, transcript, criteria)
    assert "\n\n" in theirs.segment.text[:-2]
    assert (theirs.segment.text, theirs.segment.finish) == (ours.segment.text, ours.segment.finish)
    assert theirs.usage.generated == ours.usage.generated
    assert len(asked[0]) == 2


async def test_a_confidence_that_is_too_low_ends_a_text_as_before(large: Any, builtin: Any) -> None:
    doubtful = StopCriteria(40, ("\n\n",), min_confidence=0.999)
    ours, theirs = [await written(one, QUESTION, doubtful) for one in (builtin, large)]
    assert (theirs.segment.text, theirs.segment.finish) == (ours.segment.text, "doubt")


async def test_a_judges_log_probabilities_are_sent_of_its_step_alone(
    large: Any, asked: tuple[list[Any], list[Any]]
) -> None:
    _, before, last = judged_step(large)
    await large.verify(before, last, GREEDY)
    ((output,),) = asked[0]
    rows = len(output.prompt_token_ids) - len(output.prompt_logprobs)
    assert rows == len(output.prompt_token_ids) - len(last.tokens) - 1


async def test_a_judge_reads_the_step_and_not_the_thought_before_it(large: Any) -> None:
    """With the scores of a prompt that is read whole."""
    transcript, before, last = judged_step(large)
    cold = await large.verify(replace(before, owner="cold"), last, GREEDY)
    assert cold.usage.cached == 0
    await large.verify(before, last, GREEDY)
    for _ in range(2):  # the step itself is in the cache too, and must be read all the same
        verified = await large.verify(before, last, GREEDY)
        unread = verified.usage.prompt - len(last.tokens) - 1
        assert unread - 32 < verified.usage.cached <= unread
        judged = await large.classify(call(transcript), GOOD)
        assert verified.choices == cold.choices
        for nll in (verified.nll, judged.nll):
            assert nll == pytest.approx(cold.nll, abs=1e-3)


async def test_look_ups_of_a_call_find_nothing_cached_that_it_has_not_read(large: Any) -> None:
    transcript = long_thought(large, 12)
    rare = tuple("0Q~Z@")  # not among the tokens shown, so each is asked for
    query = LabelQuery((Message("user", "Good?"),), "Score: ", rare)
    before = large.stats()
    judged = await large.classify(replace(call(transcript), owner="looks up"), query)
    after = large.stats()
    assert judged.usage.passes > 1
    assert judged.usage.cached == 0
    assert after["prompt_tokens"] - before["prompt_tokens"] > judged.usage.prompt
    assert after["cached_tokens"] - before["cached_tokens"] > 0  # by the look-ups


async def test_a_long_prompt_is_progress_with_every_part_of_it(large: Any) -> None:
    cold = replace(call(long_thought(large, 42)), owner="reads")
    before = large.stats()
    (prefilled,) = [item async for item in large.generate(cold, StopCriteria(0), GREEDY)]
    after = large.stats()
    assert prefilled.usage.prompt > CPU_CHUNK
    assert after["passes"] - before["passes"] >= 2
    assert after["rounds"] == before["rounds"]


async def test_calls_of_all_kinds_at_once_answer_as_they_do_alone(large: Any) -> None:
    transcript, before, last = judged_step(large, 6)
    drawn = Sampling(0.8, seed=11)

    def calls() -> list[Any]:
        return [
            large.classify(call(transcript), GOOD),
            large.verify(before, last, GREEDY),
            written(large, QUESTION, StopCriteria(24, min_confidence=0.4), drawn),
            written(large, transcript, StopCriteria(24), drawn),
        ]

    alone = [await one for one in calls()]
    for _ in range(3):
        together = await asyncio.gather(*calls())
        assert together[0].probabilities == pytest.approx(alone[0].probabilities, abs=1e-3)
        assert together[1].nll == pytest.approx(alone[1].nll, abs=1e-3)
        for one, other in zip(alone[2:], together[2:], strict=True):
            assert (other.segment.text, other.segment.finish) == (
                one.segment.text,
                one.segment.finish,
            )


async def test_a_closed_iterator_aborts_the_request(large: Any) -> None:
    items = large.generate(call(), StopCriteria(800), Sampling(1.5, seed=1))
    async for _ in items:
        break
    await items.aclose()
    assert large.stats()["live_rows"] == 0
    passes = -1
    for _ in range(20):  # 800 tokens would take seconds
        before, passes = passes, large.stats()["passes"]
        if passes == before:
            break
        await asyncio.sleep(0.2)
    assert passes == before


async def test_a_judge_goes_before_generations_that_wait(large: Any) -> None:
    began: list[str] = []
    drawn = Sampling(1.5, seed=1)

    async def write_one(name: str) -> None:
        async for _ in large.generate(call(), StopCriteria(150), drawn):
            began.extend([] if name in began else [name])

    async def judge() -> None:
        await large.classify(call(long_thought(large, 3)), LabelQuery((), "", DIGITS))
        began.append("judge")

    rows = large.backend._capacity.rows
    tasks = [asyncio.create_task(write_one(f"live {n}")) for n in range(rows)]
    while len(began) < rows:
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(write_one(f"waiting {n}")) for n in range(3)]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(judge()))
    await asyncio.gather(*tasks)
    assert began[rows] == "judge"


async def test_more_calls_than_rows_and_queue_are_refused(large: Any) -> None:
    room = large.backend._capacity
    large.backend._capacity = replace(room, rows=1, queue=0)
    try:
        first = large.generate(call(), StopCriteria(200), Sampling(1.5, seed=1))
        await anext(first)
        with pytest.raises(Overloaded, match="rows are taken"):
            await written(large, QUESTION, StopCriteria(4))
        await first.aclose()
    finally:
        large.backend._capacity = room


async def test_a_temperature_that_vllm_does_not_take_is_refused(large: Any) -> None:
    with pytest.raises(InvalidRequest, match="at most 2 where vLLM"):
        await written(large, QUESTION, StopCriteria(4), Sampling(3.0))


async def test_what_vllm_refuses_of_the_workers_own_is_not_the_callers_fault(large: Any) -> None:
    parameters = SamplingParams(max_tokens=1, stop_token_ids=[10**6])
    with pytest.raises(WorkerError, match=r"what the worker asks of it: .*; look at engine_args"):
        await large.backend._answer([1, 2, 3], parameters, 0, Cost(3))


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (VLLMValidationError("no", parameter="top_k", value=-7), InvalidRequest),
        (VLLMValidationError("no", parameter="logprobs", value=64), WorkerError),
        (QueueOverflowError(), Overloaded),
        (MaxQueuedTokensError(), Overloaded),
    ],
    ids=["asked", "ours", "requests", "tokens"],
)
async def test_whose_fault_a_refusal_is(
    large: Any, monkeypatch: pytest.MonkeyPatch, refusal: Exception, error: type[Exception]
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise refusal
        yield

    monkeypatch.setattr(large.backend.engine, "generate", refuse)
    with pytest.raises(error) as caught:
        await written(large, QUESTION, StopCriteria(4))
    assert caught.type is error


async def test_the_first_token_of_a_text_without_a_prompt_is_given(large: Any) -> None:
    segment = said(large, "12 + 34 = 46")
    ids = segment.tokens
    bare = Transcript((Message("prompt", "", ()),)).without_thought()
    scored = await large.verify(call(bare), segment, GREEDY)
    assert (scored.nll[0], scored.choices[0]) == (0.0, ids[0])
    assert len(scored.nll) == len(ids)
    assert len(scored.choices) == len(ids) + 1


@pytest.mark.parametrize("cached", [0, 3])
def test_both_layouts_of_a_prompts_rows_are_read(cached: int) -> None:
    ids = [5, 6, 7, 8, 9, 10]
    rows = [{token: Logprob(-float(token))} for token in ids]
    output = RequestOutput("r", None, ids, None, [], True, num_cached_tokens=cached)
    output.prompt_logprobs = [None, *rows[1:]]  # the first runner: one for every id
    assert [value for value, _ in prompt_logprobs(output, ids, slice(4, 6))] == [-9.0, -10.0]
    output.prompt_logprobs = [None, *rows[cached + 1 :]]  # the second: those that were read
    assert [value for value, _ in prompt_logprobs(output, ids, slice(4, 6))] == [-9.0, -10.0]
    if cached:
        with pytest.raises(WorkerError, match="took 3 tokens from its cache"):
            prompt_logprobs(output, ids, slice(2, 6))


def test_a_log_probability_that_is_nan_is_an_error() -> None:
    rows = [{5: Logprob(-0.5), 6: Logprob(nan)}]
    output = RequestOutput("r", None, [4, 5], [None, *rows], [], True, num_cached_tokens=0)
    with pytest.raises(WorkerError, match="NaN"):
        prompt_logprobs(output, [4, 5], slice(1, 2))
    output.outputs = [CompletionOutput(0, "", [5], None, rows)]
    with pytest.raises(WorkerError, match="NaN"):
        made_tokens(output)


async def test_an_id_that_the_tokenizer_does_not_have_is_an_error(
    large: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.vllm.running.made_tokens", lambda output: [(10**6, {10**6: 0.0})])
    with pytest.raises(WorkerError, match="the model wrote id 1000000"):
        await written(large, QUESTION, StopCriteria(4))


async def test_over_a_long_thought_judges_find_it_in_the_cache() -> None:
    # The embedded model's positions end at 1,024; what is found cached depends on no weight.
    longer = {"hf_overrides": {"max_position_embeddings": 4096}}
    worker = load("embedded:large", device="cpu", rows=2, max_len=4096, engine_args=longer)
    try:
        for kind in ("classify", "verify"):
            transcript = Transcript((Message("user", f"What is 12 + 34? ({kind})"),))
            usages: list[Any] = []
            while not usages or usages[-1].prompt < 3600:
                text = f"Step {len(usages)}: 12 and 34 give 46: 10 and 30 are 40, 2 and 4 are 6."
                step = said(worker, f"{text}\n\n", "small")
                before, transcript = transcript, transcript.extend(step)
                if kind == "classify":
                    usages.append((await worker.classify(call(transcript), GOOD)).usage)
                else:
                    usages.append((await worker.verify(call(before), step, GREEDY)).usage)
            found = sum(usage.cached for usage in usages[1:])
            assert found >= 0.95 * sum(usage.prompt for usage in usages[1:]), kind
    finally:
        worker.close()
