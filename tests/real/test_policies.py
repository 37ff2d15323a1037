"""Every policy answers a question over a real pair, and over two models of two vocabularies."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from policies import POLICIES

QUESTION = (
    "A baker has 12 trays with 8 rolls each. He sells 60 rolls. How many rolls are left? "
    "Answer in one or two short sentences."
)


def ask(api: OpenAI, policy: str, max_tokens: int) -> Any:
    messages: Any = [{"role": "user", "content": QUESTION}]
    return api.chat.completions.create(
        model=policy, messages=messages, max_tokens=max_tokens, temperature=0
    )


def check(reply: Any, policy: str, max_tokens: int) -> None:
    (choice,) = reply.choices
    assert choice.message.content.strip()
    assert choice.finish_reason in ("stop", "length")
    assert 0 < reply.usage.completion_tokens <= max_tokens
    steps = [*reply.baton["steps"], *reply.baton.get("answer_steps", ())]
    authors = {step["author"] for step in steps if step["accepted"]}
    if policy in ("small-only", "large-only"):
        assert authors == {policy.removesuffix("-only")}
    assert authors


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers(pair: OpenAI, policy: str) -> None:
    check(ask(pair, policy, 60), policy, 60)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_vocabularies(mixed: OpenAI, policy: str) -> None:
    """Policies whose token ids travel from model to model are refused, all others answer."""
    if POLICIES[policy]().one_vocabulary:
        with pytest.raises(BadRequestError, match=r"tokenizer|vocabular"):
            ask(mixed, policy, 40)
    else:
        check(ask(mixed, policy, 40), policy, 40)
