"""What requests get that say nothing of their sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.http.planning import ModelFacts
from orchestrator.types import PartialSampling, Sampling
from tests.orchestrator.serving import HTTP, post, service, serving

OWN = Sampling(0.6, 0.95, 20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service(facts={"large": ModelFacts(sampling=OWN)})) as url:
        yield url


def sampling(url: str, body: dict[str, Any], path: str = "chat/completions") -> Sampling:
    asked = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path]
    question: Any = [{"role": "user", "content": "Hi"}] if asked == "messages" else "Hi"
    given = {"model": "large-only", asked: question, **body}
    reply = HTTP.post(f"{url}/v1/{path}", json=given)
    assert reply.status_code == 200, reply.text
    trace = HTTP.get(f"{url}/v1/traces/{reply.json()['baton']['trace_id']}").json()
    return Sampling(**trace["sampling"])


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_what_is_absent_is_the_deployments(url: str, path: str) -> None:
    assert sampling(url, {}, path) == OWN
    assert sampling(url, {"temperature": 1.0}, path) == Sampling(1.0, 0.95, 20)
    assert sampling(url, {"temperature": None, "top_p": 1.0}, path) == Sampling(0.6, 1.0, 20)
    assert sampling(url, {"top_k": -1}, path) == Sampling(0.6, 0.95, 0)
    assert sampling(url, {"temperature": 0}, path).is_greedy


def test_without_any_it_is_greedy() -> None:
    with serving(service()) as url:
        assert sampling(url, {}) == Sampling()


def test_a_response_says_what_it_was_drawn_with(url: str) -> None:
    body = {"model": "large-only", "input": "Hi", "top_p": 0.5}
    told = HTTP.post(f"{url}/v1/responses", json=body).json()
    assert (told["temperature"], told["top_p"]) == (0.6, 0.5)


def test_a_file_with_all_of_it_goes_before_the_checkpoint() -> None:
    whole = PartialSampling(0.1, 0.2, 3)
    known = {"large": ModelFacts(sampling=OWN)}
    with serving(service(facts=known, sampling=whole)) as url:
        assert sampling(url, {}) == Sampling(0.1, 0.2, 3)
    with serving(service(facts=known, sampling=PartialSampling(top_p=0.5))) as url:
        assert sampling(url, {}) == Sampling(0.6, 0.5, 20)


def test_a_policy_without_the_large_model_does_not_wait_for_its_sampling() -> None:
    with serving(service(facts={"large": None})) as url:
        assert post(url).status_code == 503
        assert sampling(url, {"model": "small-only"}).is_greedy
