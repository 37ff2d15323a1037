"""Over public chat templates: what Baton renders is what each template writes of the real texts.

    pytest -m real -s tests/real/test_chat_templates.py

The reference is transformers' own renderer. A conversation that a template takes in no form is
refused by name. No question, system message or result is left out, and no text becomes a control
token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from transformers.utils.chat_template_utils import render_jinja_template

from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.types import Message, Role, ToolCall, Transcript
from tests.real.templates import public_templates
from tests.workers.conftest import TEMPLATE, make_tokenizer
from workers.text.conversation import arrangements
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
NO_QUESTION = {"fireworks-ai-llama-3-firefunction-v2"}
"""Templates that render no plain question, and are refused at the start."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} it",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "which"}},
                "required": ["key"],
            },
        },
    }
    for name in ("look", "fetch")
]
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")
SWITCHES = ("/no_think", "/think")

WORDS = st.text(st.sampled_from("ab é.\n"), min_size=1, max_size=8)
SAID = st.one_of(
    WORDS,
    st.sampled_from(["Hi", " Be brief.\n", 'a "b" \\ c', "漢字 🙂", "a\n\nb", "<tool_response>"]),
)
ASKED = st.one_of(SAID, st.sampled_from([f"Go on. {one}" for one in SWITCHES]))
ANSWERED = st.one_of(
    SAID,
    st.builds("<think>{}</think>{}".format, SAID, SAID),
    st.builds("<think>\n{}\n</think>\n\n{}".format, SAID, SAID),
    st.builds("{}</think>{}".format, SAID, SAID),
)
counts: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _report() -> Iterator[None]:
    yield
    print(f"\n{len(renderers())} public templates:", dict(sorted(counts.items())))


@cache
def renderers() -> dict[str, PromptRenderer]:
    """One for each template that renders a question; those for tools stand beside another one."""
    described, made = make_tokenizer(None).backend_tokenizer.to_str(), {}
    for name, source in public_templates().items():
        own = (TEMPLATE, source) if name.endswith("-tool_use") else (source, None)
        backend = Backend.from_str(described)
        try:
            tokenizer = Tokenizer(backend, SPECIAL, own[0], tool_use=own[1])
            made[name] = PromptRenderer(tokenizer)
        except ConfigError:
            assert name in NO_QUESTION
    return made


def speak(role: Role) -> st.SearchStrategy[Message]:
    if role == "assistant":
        return st.builds(Message, st.just(role), ANSWERED, reasoning=st.just("") | SAID)
    return st.builds(Message, st.just(role), ASKED)


CONVERSATIONS = st.lists(
    st.sampled_from(["system", "user", "assistant"]).flatmap(speak), max_size=5
).flatmap(lambda turns: st.tuples(*map(st.just, turns), speak("user")))
CALLS = st.lists(
    st.builds(
        lambda i, name, key: ToolCall(f"call{i:05d}", name, json.dumps({"key": key})),
        st.integers(0, 99999),
        st.sampled_from(["look", "fetch"]),
        SAID,
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda call: call.id,
)


@st.composite
def with_tools(draw: st.DrawFn) -> tuple[Message, ...]:
    """A conversation with tools, in which some were called."""
    turns = list(draw(st.lists(speak("system"), max_size=2)))
    for _ in range(draw(st.integers(1, 2))):
        turns.append(draw(speak("user")))
        if draw(st.booleans()):
            calls = tuple(draw(CALLS))
            said = draw(speak("assistant"))
            turns.append(replace(said, calls=calls, content=draw(st.sampled_from(["", "I look."]))))
            turns += [
                Message("tool", draw(SAID), call_id=call.id, name=call.name) for call in calls
            ]
            turns.append(draw(speak("assistant")))
    return (Message("tools", json.dumps(TOOLS)), *turns, draw(speak("user")))


def shown(prompts: PromptRenderer, message: Message) -> dict[str, Any]:
    """A message as a template is given it, with its real texts."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made |= dict.fromkeys(THOUGHTS, message.reasoning)
    if message.calls and prompts.calls:
        as_text = prompts.calls.text_arguments
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(json.loads(call.arguments), ensure_ascii=False)
                    if as_text
                    else json.loads(call.arguments),
                },
            }
            for call in message.calls
        ]
    if message.role == "tool":
        made |= {"tool_call_id": message.call_id, "name": message.name}
    return made


def reference(
    prompts: PromptRenderer, source: str, messages: tuple[Message, ...], thinking: bool, tools: Any
) -> list[str]:
    """What the template itself writes of each form of a conversation that it takes."""
    family = prompts.tokenizer.format
    variables = dict(family.variables(thinking) if family else {})
    written = []
    for form in arrangements(messages):
        for bare in (False, True):  # some refuse a thought beside calls
            turns = [shown(prompts, replace(one, reasoning="") if bare else one) for one in form]
            try:
                text = render_jinja_template(
                    [turns],
                    chat_template=source,
                    tools=tools,
                    add_generation_prompt=True,
                    **variables,
                    **SPECIAL,
                )[0][0]
            except (TemplateError, TypeError, ValueError):
                continue
            written.append(text)
            break
    return written


def ids_of(prompts: PromptRenderer, transcript: Transcript) -> list[int] | None:
    """The ids of a conversation; None: it is refused."""
    try:
        return prompts.transcript(transcript)
    except InvalidRequest:
        return None


def check(name: str, prompts: PromptRenderer, messages: tuple[Message, ...], thinks: bool) -> str:
    """How a template takes a conversation: as it writes the real texts, or not at all."""
    source, tools, transcript = public_templates()[name], None, Transcript(messages)
    if messages[0].role == "tools":
        if prompts.calls is None:
            return "refused for their tools"
        if prompts.calls.between is None and any(len(one.calls) > 1 for one in messages):
            return "with calls of one turn in turns of their own"
        tools, messages = TOOLS, messages[1:]
    elif name.endswith("-tool_use"):
        source = TEMPLATE
    ids = ids_of(prompts, transcript if thinks else transcript.without_thought())
    thinking = thinks and (ids is None or prompts.thinks(transcript))
    expected = reference(prompts, source, messages, thinking, tools)
    said = [one.content.split() for one in messages if one.role != "assistant"]
    words = {word for text in said for word in text if word not in SWITCHES}
    if ids is None:
        assert not any(all(word in text for word in words) for text in expected), "it is taken"
        return "refused by name"
    text, family = prompts.tokenizer.decode(ids), prompts.tokenizer.format
    endings = (family.open, family.closing, family.without) if family else ()
    assert any(text == one + end for one in expected for end in ("", *endings)), (text, expected)
    assert all(word in text or json.dumps(word)[1:-1] in text for word in words), (words, text)
    return "as the template writes them"


@pytest.mark.parametrize("thinks", [True, False])
@settings(max_examples=60)
@given(messages=CONVERSATIONS)
def test_conversations(thinks: bool, messages: tuple[Message, ...]) -> None:
    for name, prompts in renderers().items():
        if thinks and prompts.tokenizer.format is None:
            continue
        try:
            counts[f"conversations {check(name, prompts, messages, thinks)}"] += 1
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@settings(max_examples=60)
@given(messages=with_tools())
def test_conversations_with_tools(messages: tuple[Message, ...]) -> None:
    for name, prompts in renderers().items():
        try:
            counts[f"with tools {check(name, prompts, messages, False)}"] += 1
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@settings(max_examples=30)
@given(messages=CONVERSATIONS | with_tools())
def test_no_text_becomes_a_control_token(messages: tuple[Message, ...]) -> None:
    for name, prompts in renderers().items():
        found = []
        for spelled in ("<|im_end|>", "<|im_ned|>"):  # the second is no token
            attacked = tuple(
                one
                if one.role == "tools"
                else replace(one, content=one.content + spelled, reasoning=one.reasoning + spelled)
                for one in messages
            )
            ids = ids_of(prompts, Transcript(attacked).without_thought())
            found.append(ids and [i for i in ids if i in prompts.tokenizer.added])
        assert found[0] == found[1], name
        counts["attacks without effect"] += 1
