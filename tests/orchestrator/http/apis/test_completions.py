"""`POST /v1/completions` over the embedded pair, with the official client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from math import exp
from typing import Any

import pytest

from orchestrator.http.settings import ServiceLimits
from orchestrator.types import Message, Segment, Transcript, Verification
from orchestrator.worker import Call
from tests.orchestrator.serving import HTTP, STORY, client, service, serving
from tests.workers.scripted import Scripted
from workers.worker import EngineWorker

TEXT = "12+30=42.\n\n42-2="


@pytest.fixture(scope="module")
def url(large: EngineWorker) -> Iterator[str]:
    with serving(service(large=large)) as url:
        yield url


def complete(url: str, **body: Any) -> Any:
    with client(url) as api:
        made = api.completions.create(**{"model": "large-only", "prompt": TEXT, **body})
        return list(made) if body.get("stream") else made


def refused(url: str, **body: Any) -> Any:
    given = {"model": "large-only", "prompt": TEXT, **body}
    reply = HTTP.post(f"{url}/v1/completions", json=given)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_ids_say_what_the_text_says(url: str, large: EngineWorker) -> None:
    tokenizer = large.tokenizer
    ids = [*tokenizer.begin, *tokenizer.encode(TEXT)]
    text, numbers, listed = (
        complete(url, prompt=prompt, max_tokens=20) for prompt in (TEXT, ids, [ids])
    )
    assert text.choices == numbers.choices == listed.choices
    assert text.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("pattern", ["[a-z]{2}", " [a-z]{2}", "\\n [a-z]{2} \\n"])
def test_white_space_is_the_forms(url: str, pattern: str) -> None:
    """The model would begin with a blank."""
    shown = complete(
        url, prompt="The answer", extra_body={"structured_outputs": {"regex": pattern}}
    )
    assert re.fullmatch(pattern, shown.choices[0].text)
    sampled = complete(
        url,
        prompt="The answer",
        temperature=1.5,
        seed=3,
        extra_body={"structured_outputs": {"json": {"enum": [8]}}},
    )
    assert sampled.choices[0].text == "8"


def test_white_space_is_kept_and_stop_strings_are_found_in_it(url: str) -> None:
    whole = complete(url, prompt="The answer", max_tokens=4).choices[0]
    first = " " + whole.text.split()[0]
    assert whole.text.startswith(first)
    cut = complete(url, prompt="The answer", stop=first).choices[0]
    assert (cut.text, cut.finish_reason) == ("", "stop")


def test_stream(url: str) -> None:
    whole = complete(url, max_tokens=12)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *said, last, usage = complete(url, max_tokens=12, stream=True, stream_options=options)
    assert "".join(chunk.choices[0].text for chunk in said) == whole.choices[0].text
    assert len(said) > 1
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (usage.choices, usage.usage) == ([], whole.usage)
    counts = [chunk.usage.completion_tokens for chunk in said]
    assert counts == sorted(counts)


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_log_likelihoods_as_evaluations_ask_for_them(
    url: str, large: EngineWorker, kind: str
) -> None:
    ids = [*large.tokenizer.begin, *large.tokenizer.encode(TEXT)]
    prompt = TEXT if kind == "text" else ids
    reply = complete(url, prompt=prompt, echo=True, logprobs=1, max_tokens=1)
    told, text = reply.choices[0].logprobs, reply.choices[0].text
    assert text.endswith(TEXT + "4")
    assert "".join(told.tokens) == text
    for at, token in zip(told.text_offset, told.tokens, strict=True):
        assert text[at:].startswith(token)
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    likely, best = told.token_logprobs[-1], told.top_logprobs[-1]
    assert exp(likely) > 0.9
    assert likely == max(best.values())
    for token, value, top in list(
        zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True)
    )[1:]:
        assert value == top[token] <= max(top.values()) <= 0
    wrong = complete(url, prompt=TEXT + "39.", echo=True, logprobs=1, max_tokens=1)
    values = wrong.choices[0].logprobs
    place = values.tokens.index("3", len(values.tokens) - 5)
    assert values.token_logprobs[place] < max(values.top_logprobs[place].values()) - 1


PROMPTS = [TEXT, "12+30=", "The answer is"]


@pytest.mark.parametrize("n", [1, 2])
def test_of_several_prompts_each_is_answered_as_by_itself(
    url: str, large: EngineWorker, n: int
) -> None:
    body: dict[str, Any] = {"n": n, "temperature": 0.9, "seed": 5, "max_tokens": 6}
    whole = complete(url, prompt=PROMPTS, **body)
    alone = [complete(url, prompt=one, **body) for one in PROMPTS]
    assert [choice.index for choice in whole.choices] == list(range(3 * n))
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == [
        (choice.text, choice.finish_reason) for one in alone for choice in one.choices
    ]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(whole.usage, name) == sum(getattr(one.usage, name) for one in alone)
    ids = [choice.model_extra["baton"]["trace_id"] for choice in whole.choices]
    assert ids == [ids[0], *(f"{ids[0]}-{i}" for i in range(1, 3 * n))]
    last = HTTP.get(f"{url}/v1/traces/{ids[-1]}").json()
    assert (last["messages"][0]["content"], last["choice"]) == (PROMPTS[-1], 3 * n - 1)
    numbers = [[*large.tokenizer.begin, *large.tokenizer.encode(one)] for one in PROMPTS]
    by_ids = complete(url, prompt=numbers, **body)
    assert [c.text for c in by_ids.choices] == [c.text for c in whole.choices]
    chunks = complete(
        url, prompt=PROMPTS, stream=True, stream_options={"include_usage": True}, **body
    )
    said = [""] * 3 * n
    for chunk in chunks[:-1]:
        said[chunk.choices[0].index] += chunk.choices[0].text
    assert said == [choice.text for choice in whole.choices]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(chunks[-1].usage, name) == getattr(whole.usage, name)


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_a_prompt_alone_is_scored(url: str, large: EngineWorker, kind: str) -> None:
    ids = [*large.tokenizer.begin, *large.tokenizer.encode(TEXT)]
    prompt: Any = TEXT if kind == "text" else ids
    body: dict[str, Any] = {"prompt": [prompt, prompt], "echo": True, "logprobs": 2}
    alone, more = (complete(url, max_tokens=cap, **body) for cap in (0, 1))
    assert (alone.usage.completion_tokens, more.usage.completion_tokens) == (0, 2)
    assert alone.usage.prompt_tokens == more.usage.prompt_tokens == 2 * len(ids)
    for choice, longer in zip(alone.choices, more.choices, strict=True):
        assert choice.finish_reason == "length"
        assert longer.text == choice.text + "4"
        assert choice.logprobs.tokens == longer.logprobs.tokens[:-1]
        assert choice.logprobs.text_offset == longer.logprobs.text_offset[:-1]
        assert choice.logprobs.top_logprobs[0] is None
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(
            longer.logprobs.token_logprobs[1:-1], abs=1e-3
        )
    assert complete(url, echo=True, max_tokens=0).choices[0].text == TEXT


def test_the_models_own_end_has_a_row_too(url: str, large: EngineWorker) -> None:
    tokenizer = large.tokenizer
    question = Transcript((Message("user", "What is 37+12?"),))
    ids = list(large.prompts.transcript(question))
    whole = complete(url, prompt=ids, logprobs=1, max_tokens=200)
    told = whole.choices[0].logprobs
    assert whole.choices[0].finish_reason == "stop"
    assert len(told.tokens) == whole.usage.completion_tokens
    assert "".join(told.tokens) == whole.choices[0].text
    ended = [*ids, *tokenizer.encode(whole.choices[0].text)]
    for echo in (True, False):
        reply = complete(url, prompt=ended, echo=echo, logprobs=1, max_tokens=1)
        told = reply.choices[0].logprobs
        assert len(told.tokens) == len(ended) * echo + 1
        assert "".join(told.tokens) == reply.choices[0].text
        assert told.tokens[-1] == ""
        assert exp(told.token_logprobs[-1]) > 0.9
        assert told.top_logprobs[-1] == {"": told.token_logprobs[-1]}
        assert told.text_offset[-1] == len(reply.choices[0].text)


def counted(url: str, outcome: str) -> float:
    label = f'baton_requests_total{{outcome="{outcome}",policy="large-only"}}'
    lines = HTTP.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(label))


class ScoresSlowly(Scripted):
    async def verify(self, call: Call, segment: Segment, *given: Any) -> Verification:
        if segment.text:
            await asyncio.sleep(30)
        return await super().verify(call, segment, *given)


@pytest.mark.parametrize("body", [{"logprobs": 1}, {"logprobs": 1, "echo": True}])
def test_scoring_is_within_the_deadline_and_the_metrics(body: dict[str, Any]) -> None:
    limits = ServiceLimits(deadline_s=0.3)
    with serving(service(large=ScoresSlowly(story=STORY), limits=limits)) as url:
        given = {"model": "large-only", "prompt": "hi", **body}
        reply = HTTP.post(f"{url}/v1/completions", json=given)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "deadline_exceeded"
        assert counted(url, "stop") == 0


def test_echo_and_log_probabilities_each_alone(url: str, large: EngineWorker) -> None:
    assert complete(url, echo=True, max_tokens=2).choices[0].text == TEXT + "40"
    ids = list(large.tokenizer.encode(TEXT))
    assert complete(url, prompt=ids, echo=True, max_tokens=2).choices[0].text.startswith(TEXT)
    told = complete(url, logprobs=0, max_tokens=4).choices[0]
    for token, value, top in zip(
        told.logprobs.tokens,
        told.logprobs.token_logprobs,
        told.logprobs.top_logprobs,
        strict=True,
    ):
        assert top == {token: value}
    assert "".join(told.logprobs.tokens) == told.text
    assert len(told.logprobs.token_logprobs) == 4
    assert None not in told.logprobs.token_logprobs


def test_as_many_of_the_likeliest_as_are_asked_for(url: str) -> None:
    one, five = (
        complete(url, logprobs=count, echo=True, temperature=1.5, seed=2, max_tokens=12).choices[0]
        for count in (1, 5)
    )
    assert one.logprobs.tokens == five.logprobs.tokens
    for token, value, few, many in list(
        zip(
            five.logprobs.tokens,
            five.logprobs.token_logprobs,
            one.logprobs.top_logprobs,
            five.logprobs.top_logprobs,
            strict=True,
        )
    )[1:]:
        assert 1 <= len(few) <= 2
        assert 5 <= len(many) <= 6
        assert many[token] == value
        assert list(many.values())[:5] == sorted(many.values(), reverse=True)[:5]
        # The two passes that computed them need not have had one shape, so the last digits differ.
        assert few == pytest.approx({token: many[token] for token in few}, abs=1e-4)
        assert sum(map(exp, many.values())) <= 1 + 1e-6


def test_markup_that_no_text_shows_has_rows_and_shifts_nothing(
    url: str, large: EngineWorker
) -> None:
    ids = list(large.prompts.transcript(Transcript((Message("user", "What is 37+12?"),))))
    more = {"ignore_eos": True}
    told = complete(url, prompt=ids, logprobs=1, max_tokens=50, extra_body=more).choices[0]
    rows = told.logprobs
    hidden = {"<|end|>", "</think>"} & set(rows.tokens)
    assert hidden, "the model ended nothing"
    for at, token in zip(rows.text_offset, rows.tokens, strict=True):
        assert token in hidden or told.text[at:].startswith(token)
    # A client that looks for the likeliest by its name finds the token that was drawn.
    for token, top in zip(rows.tokens, rows.top_logprobs, strict=True):
        assert max(top, key=top.get) == token


def test_load_tools_get_as_many_tokens_as_they_want(url: str) -> None:
    reply = complete(url, max_tokens=80, extra_body={"ignore_eos": True})
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (80, "length")


def test_a_text_does_not_end_before_min_tokens(url: str, large: EngineWorker) -> None:
    ids = list(large.prompts.transcript(Transcript((Message("user", "What is 37+12?"),))))
    plain = complete(url, prompt=ids, max_tokens=200)
    assert plain.choices[0].finish_reason == "stop"
    size = plain.usage.completion_tokens
    longer = complete(url, prompt=ids, max_tokens=200, extra_body={"min_tokens": size + 12})
    assert longer.usage.completion_tokens >= size + 12
    assert longer.choices[0].text.startswith(plain.choices[0].text)
    first = plain.choices[0].text.split()[0]
    late = complete(url, prompt=ids, max_tokens=200, stop=first, extra_body={"min_tokens": size})
    assert late.usage.completion_tokens >= size
    assert first in late.choices[0].text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "specreason"}, "model"),
        ({"model": "baton"}, "model"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["one", ""]}, "prompt[1]"),
        ({"prompt": ["one", 5]}, "prompt[1]"),
        ({"prompt": [[1], [2, "two"]]}, "prompt[1]"),
        ({"prompt": ["one"] * 17}, "prompt"),
        ({"prompt": ["one"] * 9, "n": 2}, "prompt"),
        ({"prompt": ["one", "12 + " * 3000]}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n": 17}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": 1, "stream": True}, "logprobs"),
        ({"logprobs": 1, "stop": "x"}, "logprobs"),
        ({"echo": True, "stream": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"prompt": "12 + " * 3000}, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused_by_name(url: str, body: dict[str, Any], param: str) -> None:
    assert refused(url, **body)["param"] == param


@pytest.mark.parametrize("listed", [False, True])
def test_a_long_prompt_of_ids_is_as_long_as_the_context_says(url: str, listed: bool) -> None:
    ids = [5] * 20_001
    error = refused(url, prompt=[ids] if listed else ids)
    assert error["code"] == "context_length_exceeded"


def test_a_completion_is_on_record(url: str) -> None:
    reply = complete(url, prompt=[5, 6, 7])
    trace = HTTP.get(f"{url}/v1/traces/{reply.model_extra['baton']['trace_id']}").json()
    assert trace["messages"] == [{"role": "prompt", "content": "", "tokens": [5, 6, 7]}]
    assert trace["answer"] == reply.choices[0].text.rstrip()
