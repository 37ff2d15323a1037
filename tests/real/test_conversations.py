"""Chat with a real pair, whose models have no thought of their own, by the official client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from transformers import AutoTokenizer

from deploy.lab.fetch import LINKS
from orchestrator.types import Message, Transcript
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import EngineWorker

COUNT = "Write the numbers from 1 to 5, one per line, and nothing else."
CONVERSATION = [
    {"role": "system", "content": "You are a polite assistant."},
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada, nice to meet you."},
    {"role": "user", "content": "What is my name? Reply with the name alone."},
]


def ask(api: OpenAI, model: str, text: str, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return api.chat.completions.create(model=model, messages=messages, temperature=0, **more)


def reasoning_of(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or ""


@pytest.mark.parametrize("policy", ["large-only", "specreason"])
def test_the_answer_is_content_with_its_line_breaks(pair: OpenAI, policy: str) -> None:
    (choice,) = ask(pair, policy, COUNT, max_tokens=60).choices
    assert choice.message.content.split("\n") == ["1", "2", "3", "4", "5"]
    assert choice.finish_reason == "stop"
    assert reasoning_of(choice.message) == ""


def test_a_stream_says_the_same_piece_by_piece(pair: OpenAI) -> None:
    whole = ask(pair, "small-only", COUNT, max_tokens=60).choices[0]
    pieces, finishes = [], []
    for chunk in ask(pair, "small-only", COUNT, max_tokens=60, stream=True):
        (choice,) = chunk.choices
        assert reasoning_of(choice.delta) == ""
        pieces.append(choice.delta.content or "")
        finishes.append(choice.finish_reason)
    assert "".join(pieces).strip() == whole.message.content
    assert sum(bool(piece) for piece in pieces) > 2
    assert [one for one in finishes if one] == [whole.finish_reason]


def test_the_conversation_so_far_is_known(pair: OpenAI) -> None:
    messages: Any = CONVERSATION
    for policy in ("small-only", "specreason"):
        reply = pair.chat.completions.create(
            model=policy, messages=messages, temperature=0, max_tokens=20
        )
        assert "Ada" in reply.choices[0].message.content


@pytest.mark.parametrize("model", ["tiny", "small", "large"])
def test_the_prompt_is_what_the_checkpoints_own_template_gives(model: str) -> None:
    theirs = AutoTokenizer.from_pretrained(LINKS / model)
    renderer = PromptRenderer(load_tokenizer(LINKS / model))
    messages = tuple(Message(one["role"], one["content"]) for one in CONVERSATION)  # type: ignore[arg-type]
    for first in (0, 1):  # without a system message the template puts its own
        expected = theirs.apply_chat_template(
            CONVERSATION[first:], add_generation_prompt=True, tokenize=False
        )
        ours = renderer.transcript(Transcript(messages[first:]))
        assert ours == theirs(expected, add_special_tokens=False)["input_ids"]
    if model != "tiny":
        tools = load_tokenizer(LINKS / model).chat_template.source
        assert tools == (LINKS / model / "chat_template.jinja").read_text(encoding="utf-8")
        assert "<tool_call>" in tools


def test_a_gguf_file_is_the_same_model(tiny: EngineWorker) -> None:
    from_file, folder = load_tokenizer(LINKS / "tiny.gguf"), load_tokenizer(LINKS / "tiny")
    assert (from_file.hash, from_file.pieces) == (folder.hash, folder.pieces)
    assert from_file.chat_template.source == folder.chat_template.source
    assert tiny.backend.engine.decoder.target.model.config.num_hidden_layers == 30


def test_a_text_of_four_thousand_tokens(mixed: OpenAI) -> None:
    question = "Repeat the word hello forever, without ever stopping."
    reply = ask(mixed, "small-only", question, max_tokens=4000)
    assert reply.usage.completion_tokens == 4000
    assert reply.choices[0].finish_reason == "length"
    assert len(reply.choices[0].message.content) > 4000
