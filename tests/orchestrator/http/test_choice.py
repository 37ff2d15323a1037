"""Several answers to one request, with the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from orchestrator.errors import WorkerError
from orchestrator.http.settings import ServiceLimits
from orchestrator.state.memory import MemoryStore
from orchestrator.types import Generation, Sampling, StopCriteria
from orchestrator.worker import Call, Delta, family
from tests.orchestrator.serving import (
    HTTP,
    STORY,
    asking,
    client,
    post,
    scripted,
    service,
    serving,
    until,
)
from tests.workers.scripted import Scripted
from workers.worker import EngineWorker

SAMPLED = {"model": "large-only", "temperature": 1.5, "max_tokens": 40}


@pytest.fixture(scope="module")
def url(large: EngineWorker) -> Iterator[str]:
    with serving(service(large=large)) as url:
        yield url


def record(url: str, trace_id: str) -> Any:
    return HTTP.get(f"{url}/v1/traces/{trace_id}").json()


def said(choice: Any) -> tuple[str, str]:
    return choice.message.reasoning_content, choice.message.content


def chat(url: str, **body: Any) -> Any:
    with client(url) as api:
        made = api.chat.completions.create(**asking(**{**SAMPLED, **body}))
        return list(made) if body.get("stream") else made


def test_each_answer_is_what_its_own_seed_gives(url: str) -> None:
    reply = chat(url, n=3, seed=2**63 - 2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    texts = [said(choice) for choice in reply.choices]
    assert len(set(texts)) == 3
    alone = [chat(url, seed=seed) for seed in (2**63 - 2, 2**63 - 1, 0)]  # 63 bits of it count
    assert texts == [said(one.choices[0]) for one in alone]
    assert reply.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert reply.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    thoughts = [one.usage.completion_tokens_details.reasoning_tokens for one in alone]
    assert reply.usage.completion_tokens_details.reasoning_tokens == sum(thoughts)


def test_without_a_seed_the_answers_differ(url: str) -> None:
    assert len({said(choice) for choice in chat(url, n=4).choices}) > 1


def test_each_answer_is_on_record(url: str) -> None:
    reply = chat(url, n=2, seed=3)
    first = reply.model_extra["baton"]
    own = [choice.model_extra["baton"] for choice in reply.choices]
    assert first == own[0]
    assert [one["trace_id"] for one in own] == [first["trace_id"], first["trace_id"] + "-1"]
    for choice, extra in zip(reply.choices, own, strict=True):
        kept = record(url, extra["trace_id"])
        assert kept["choice"] == choice.index
        assert (kept["sampling"]["seed"], kept["status"]) == (3 + choice.index, "finished")
        assert kept["answer"] == choice.message.content
        worth = {"trace_id": extra["trace_id"], "reward": 1.0}
        assert HTTP.post(f"{url}/v1/feedback", json=worth).status_code == 200


def test_the_prompt_is_read_once(url: str) -> None:
    messages = [{"role": "user", "content": "Tom has 12 pens and " + "buys 3 more and " * 40}]
    reply = chat(url, n=3, messages=messages)
    prompt, trace_id = reply.usage.prompt_tokens, reply.model_extra["baton"]["trace_id"]
    assert reply.usage.prompt_tokens_details.cached_tokens < prompt / 2
    for name in (f"{trace_id}-1", f"{trace_id}-2"):
        cached = record(url, name)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= prompt - 1


def test_one_request_prefers_one_replica() -> None:
    assert family("5f-1") == family("5f-12") == family("5f") == "5f"


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_ends_all(stream: bool) -> None:
    slow = scripted(delay=30.0)
    made = service(large=slow)
    with serving(made) as url:
        with pytest.raises(openai.APITimeoutError), client(url, timeout=1.0) as api:
            list(api.chat.completions.create(**asking(model="large-only", n=3, stream=stream)))
        until(lambda: not made.live.admission.live and not slow.live)


def test_places_are_counted_by_answer() -> None:
    slow = scripted(delay=30.0)
    made = service(large=slow, limits=ServiceLimits(concurrent=4, wait_s=0))
    with serving(made) as url, client(url) as api:
        stream = api.chat.completions.create(**asking(model="large-only", n=3, stream=True))
        until(lambda: made.live.admission.live == 1)
        assert post(url, {"model": "large-only", "n": 2}).status_code == 429
        stream.close()


class FailsOnce(Scripted):
    """The worker of the second answer cannot write it."""

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        if call.request.endswith("-1") and criteria.max_tokens:
            raise WorkerError("no luck")
        async for item in super().generate(call, criteria, sampling, stream=stream):
            yield item


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_fails_ends_the_request(stream: bool) -> None:
    made = service(large=FailsOnce(story=STORY))
    with serving(made) as url:
        reply = post(url, {"model": "large-only", "n": 2, "stream": stream})
        if stream:
            assert reply.text.rstrip().splitlines()[-1].startswith('data: {"error"')
            assert "[DONE]" not in reply.text
        else:
            assert reply.status_code == 503
        until(lambda: not made.live.admission.live)


async def test_one_that_fails_is_one_failure() -> None:
    store = MemoryStore()
    made = service(large=FailsOnce(story=STORY, delay=0.05), store=store)
    with serving(made) as url:
        assert post(url, {"model": "large-only", "n": 3}).status_code == 503
        until(lambda: not made.live.admission.live)
        traces = HTTP.get(f"{url}/v1/traces").json()["data"]
    assert sorted(one["status"] for one in traces) == ["cancelled", "cancelled", "failed"]


@pytest.mark.parametrize("limits", [ServiceLimits(concurrent=2), ServiceLimits(choices=2)])
def test_places_and_the_deployment_bound_the_answers(limits: ServiceLimits) -> None:
    with serving(service(limits=limits)) as url:
        assert len(post(url, {"model": "large-only", "n": 2}).json()["choices"]) == 2
        refused = post(url, {"model": "large-only", "n": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"
    assert "at most 2 answers to a request, not 3" in refused.json()["error"]["message"]
