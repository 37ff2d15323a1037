"""Families of thought: found, named, written down; templates here are in the families' own form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tokenizers import AddedToken

from orchestrator.errors import ConfigError
from orchestrator.types import Message, Segment, Segments, Transcript
from tests.workers.conftest import CONTROLS, make_tokenizer
from workers.text.chat_template import ChatTemplate
from workers.text.prompt import FINAL_ANSWER, PromptRenderer
from workers.text.thinking import (
    BY_NAME,
    FORMATS,
    ThinkingFormat,
    find_format,
    parse_thinking,
)
from workers.text.tokenizer import Tokenizer

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
QUESTION = Transcript((Message("user", "2+2?"),))
THOUGHT = Segments([Segment("small", "It is 4.\n\n")])
NEWLINE = "{{ '\\n' }}"  # at its end Jinja drops a plain one
SWITCH = "{% if enable_thinking is defined and enable_thinking is false %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
    "{% endfor %}{% if false %}<|channel|>analysis<|message|>{% endif %}<|start|>assistant"
)
# name: (what the template writes behind the turns, family; then the prompt as a thought begins,
# between thought and answer, and the beginning of an answer without a thought)
TEMPLATES: dict[str, tuple[str, str, str, str, str]] = {
    "hybrid": (f"<|im_start|>assistant\n{SWITCH}<think>\n\n</think>\n\n{{% endif %}}",
               "deepseek_r1", "<think>", "</think>", "<think>\n\n</think>\n\n"),
    "opened": ("<|im_start|>assistant\n<think>" + NEWLINE,
               "deepseek_r1", "<think>\n", "</think>", "<think>\n</think>"),
    "off unless told": (
        "<|im_start|>assistant\n{% if thinking %}<think>{% else %}</think>{% endif %}",
        "deepseek_r1", "<think>", "</think>", "</think>"),
    "no switch": ("{% if false %}<think></think>{% endif %}<|im_start|>assistant" + NEWLINE,
                  "deepseek_r1", "<think>", "</think>", "<think></think>"),
    "mistral": ("{% if false %}[THINK][/THINK]{% endif %}<|im_start|>assistant" + NEWLINE,
                "mistral", "[THINK]", "[/THINK]", "[THINK][/THINK]"),
    "effort": ("<|im_start|>assistant\n{% if (reasoning_effort or 'no_think') == 'no_think' %}"
               "<think:opensource></think:opensource>{% endif %}",
               "hy_v3", "<think:opensource>", "</think:opensource>",
               "<think:opensource></think:opensource>"),
    "command": ("<|im_start|>assistant\n<|START_THINKING|>{% if not reasoning %}"
                "<|END_THINKING|>{% endif %}{% if false %}<|START_TEXT|>{% endif %}",
                "cohere_command4", "<|START_THINKING|>", "<|END_THINKING|><|START_TEXT|>",
                "<|START_THINKING|><|END_THINKING|>"),
    "plain words": (
        "{% if thinking %}Here is my thought process: ... Here is my response:{% endif %}"
        + TURNS + "<|im_start|>assistant" + NEWLINE,
        "granite", "Here is my thought process:", "Here is my response:", ""),
}  # fmt: skip


@pytest.fixture
def renderer(prompts_with: Callable[..., PromptRenderer]) -> Callable[[str], PromptRenderer]:
    return lambda template: prompts_with(template=template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_family_is_found_and_written(
    name: str, renderer: Callable[[str], PromptRenderer]
) -> None:
    template, family, opening, closing, without = TEMPLATES[name]
    prompts = renderer(template if TURNS in template else TURNS + template)
    tokenizer = prompts.tokenizer
    assert tokenizer.format is not None
    assert (tokenizer.format.name, tokenizer.thinks) == (family, True)
    start = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"

    def written(transcript: Transcript) -> str:
        text = tokenizer.decode(prompts.transcript(transcript))
        assert start in text
        return text.partition(start)[2]

    assert written(QUESTION) == opening
    thought = replace(QUESTION, thought=THOUGHT)
    assert written(thought) == f"{opening}It is 4.\n\n"
    assert written(replace(thought, closed=True)) == f"{opening}It is 4.\n\n{closing}"
    assert written(QUESTION.without_thought()) == without


def test_channels() -> None:
    """Harmony: a judge's reply names its channel too."""
    tokenizer = tokenizer_of(HARMONY, ("<|start|>", "<|message|>", "<|end|>", "<|channel|>"))
    assert tokenizer.format is not None
    assert tokenizer.format.name == "openai_gptoss"
    assert tokenizer.close_id == tokenizer.encode_markup("<|end|>")[0]
    prompts = PromptRenderer(tokenizer)
    closed = replace(QUESTION, thought=THOUGHT, closed=True)
    assert tokenizer.decode(prompts.transcript(closed)) == (
        "<|start|>user<|message|>2+2?<|end|><|start|>assistant"
        "<|channel|>analysis<|message|>It is 4.\n\n<|end|>"
        "<|start|>assistant<|channel|>final<|message|>"
    )
    without = tokenizer.decode(prompts.transcript(QUESTION.without_thought()))
    assert without.endswith("<|start|>assistant<|channel|>final<|message|>")
    side = tokenizer.decode(prompts.side((Message("user", "Good?"),), "9"))
    assert side.endswith("<|message|>Good?<|end|><|start|>assistant<|channel|>final<|message|>9")


def tokenizer_of(template: str, controls: tuple[str, ...]) -> Tokenizer:
    fast = make_tokenizer(template, controls=("<|endoftext|>", "<|im_start|>", *controls))
    return Tokenizer(fast.backend_tokenizer, {"eos_token": controls[0]}, template)


# The tokens that an answer may name, if not those of both marks: the others end a message.
NAMED: dict[str, list[str]] = {
    "openai_gptoss": [], "muse_glimmer": [], "kimi_k3": [], "granite": [],
    "solar_open": ["<|think|>"], "inkling": ["<|content_thinking|>"],
    "apriel": ["[BEGIN FINAL RESPONSE]"],
}  # fmt: skip
TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z /]+\]|◁[^▷]+▷")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FORMATS, ids=lambda one: one.name)
def test_what_only_marks_a_thought_ends_no_answer(family: ThinkingFormat, special: bool) -> None:
    tokens = TOKEN.findall(family.open + family.closing + family.end + family.direct)
    if special:
        backend = make_tokenizer(None, controls=CONTROLS[:3]).backend_tokenizer
        backend.add_special_tokens([AddedToken(one, special=True) for one in tokens])
    else:
        backend = make_tokenizer(None, controls=(*CONTROLS[:3], *tokens)).backend_tokenizer
    eos = {"eos_token": "<|im_end|>"}
    tokenizer = Tokenizer(backend, eos, thinking=family)
    prompts = PromptRenderer(tokenizer)
    marks = TOKEN.findall(family.open + family.close)
    named = {backend.token_to_id(token) for token in NAMED.get(family.name, marks)}
    assert tokenizer.controls >= {backend.token_to_id(one) for one in TOKEN.findall(family.closing)}
    assert tokenizer.ends == tokenizer.controls - named
    closes = {tokenizer.close_id} - {None}
    assert prompts.ends(tokenizer.ends, replace(QUESTION, closed=True)) == tokenizer.ends
    assert prompts.ends(tokenizer.ends, QUESTION) == tokenizer.ends | closes
    # Named or not, no text becomes one.
    for one in tokens:
        assert not tokenizer.controls.intersection(tokenizer.encode(one))


def test_no_thought_is_a_family_too(renderer: Callable[[str], PromptRenderer]) -> None:
    """The vocabulary has the markers and the template knows none: nothing is made up."""
    prompts = renderer(TURNS + "<|im_start|>assistant" + NEWLINE)
    tokenizer = prompts.tokenizer
    assert (tokenizer.format, tokenizer.thinks, tokenizer.close_id) == (None, False, None)
    start = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    for transcript in (QUESTION, QUESTION.without_thought()):
        assert tokenizer.decode(prompts.transcript(transcript)) == start
    # What a model that does think has thought is plain text to it, and its answer is asked for.
    shared = replace(QUESTION, thought=THOUGHT)
    assert tokenizer.decode(prompts.transcript(shared)) == f"{start}It is 4.\n\n"
    shared = replace(shared, closed=True)
    assert tokenizer.decode(prompts.transcript(shared)) == f"{start}It is 4.\n\n{FINAL_ANSWER}"
    # The spelling of a marker is text.
    assert not tokenizer.controls.intersection(tokenizer.encode_markup("<think></think>"))


def test_the_vocabulary_decides_where_the_template_only_ends_thoughts() -> None:
    template = ChatTemplate("{{ messages[0].content.split('</think>')[-1] }}", {})
    assert find_format(template, ()) is None
    found = find_format(template, ("<think>", "</think>"))
    assert found is not None
    assert found.name == "deepseek_r1"
    assert find_format(None, ("<think>", "</think>")) is found
    assert find_format(None, CONTROLS[:3]) is None


def test_tokens_with_a_suffix_of_the_checkpoints_own() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    opening, closing = "<think:6124c78e>", "</think:6124c78e>"
    found = find_format(template, (opening, closing, "<tool_call:6124c78e>"))
    assert found is not None
    assert (found.name, found.open, found.close) == ("hy_v4", opening, closing)
    assert found.variables(False)["reasoning_effort"] == "no_think"
    assert find_format(template, ("<think:a>", "</think:b>")) is None


def test_typed_blocks() -> None:
    """Inkling: the template begins a message, the model says of what type it is."""
    prompts = PromptRenderer(
        tokenizer_of(
            TURNS + "{% if false %}<|content_thinking|><|end_message|>{% endif %}<|message_model|>",
            ("<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|end_message|>"),
        )
    )

    thought, answer = "<|message_model|><|content_thinking|>", "<|message_model|><|content_text|>"
    for transcript, written in (
        (QUESTION, thought),
        (replace(QUESTION, thought=THOUGHT, closed=True),
         f"{thought}It is 4.\n\n<|end_message|>{answer}"),
        (QUESTION.without_thought(), answer),
    ):  # fmt: skip
        text = prompts.tokenizer.decode(prompts.transcript(transcript))
        assert text.partition("2+2?<|im_end|>\n")[2] == written


def test_a_template_that_refuses_our_question_is_read_all_the_same() -> None:
    template = ChatTemplate("{{ raise_exception('no') }}<think></think>", {})
    assert find_format(template, ()) is BY_NAME["qwen3"]


def test_settings() -> None:
    assert parse_thinking("auto") == "auto"
    assert parse_thinking("none") == "none"
    assert parse_thinking("glm45") is BY_NAME["deepseek_r1"]
    own = parse_thinking({"open": "<a>", "close": "</a>", "answer": "<b>", "end": "</b>"})
    assert not isinstance(own, str)
    assert (own.open, own.close, own.answer, own.end) == ("<a>", "</a>", "<b>", "</b>")
    more, number = {"open": "a", "close": "b", "middle": "c"}, {"open": "a", "close": 1}
    for wrong in ("qwen", "", {}, {"open": "<a>"}, {"open": "", "close": " "}, more, number):
        with pytest.raises(ConfigError, match="thinking"):
            parse_thinking(wrong)  # type: ignore[arg-type]


def test_switched_off_by_the_deployment(prompts_with: Callable[..., PromptRenderer]) -> None:
    template, *_ = TEMPLATES["opened"]
    fast = make_tokenizer(TURNS + template)
    tokenizer = Tokenizer(fast.backend_tokenizer, {}, TURNS + template, parse_thinking("none"))
    assert not tokenizer.thinks
    text = tokenizer.decode(PromptRenderer(tokenizer).transcript(QUESTION))
    assert text.endswith("<|im_start|>assistant\n<think>\n</think>")


def test_a_switch_that_a_system_message_hides(renderer: Callable[[str], PromptRenderer]) -> None:
    """Granite 3.3: with one the template never asks for a thought, so none is made up."""
    template = (
        "{% if messages[0].role != 'system' and thinking %}Write <think></think>"
        "<response></response>.{% endif %}" + TURNS + "<|im_start|>assistant" + NEWLINE
    )
    prompts = renderer(template)
    tokenizer = prompts.tokenizer
    assert tokenizer.format is BY_NAME["granite_thinking"]
    for messages in (QUESTION.messages, (Message("system", "Be brief."), *QUESTION.messages)):
        ids = prompts.transcript(Transcript(messages).without_thought())
        assert tokenizer.decode(ids).endswith("2+2?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.stops(thinking=False) == [("</response>", "eos")]
    silent = Tokenizer(make_tokenizer(template).backend_tokenizer, {}, template, "none")
    assert silent.stops(thinking=True) == []
    assert silent.stops(thinking=False) == [("</response>", "eos")]


def test_a_family_of_the_users_own() -> None:
    own = parse_thinking({"open": "Plan:", "close": "Done:", "end": "Bye"})
    fast = make_tokenizer(TURNS, controls=CONTROLS[:3])
    tokenizer = Tokenizer(fast.backend_tokenizer, {}, TURNS, own)
    assert tokenizer.stops(thinking=True) == [("Done:", "think_end")]
    assert tokenizer.stops(thinking=False) == [("Bye", "eos")]
    assert tokenizer.close_id is None


def test_names_are_unique_and_every_family_can_be_told_from_its_own_markup() -> None:
    assert len(BY_NAME) == sum(len(one.names) for one in FORMATS)
    for one in FORMATS:
        source = f"{one.mark}{one.open}...{one.closing}"
        found = find_format(ChatTemplate("{% if false %}" + source + "{% endif %}", {}), ())
        assert found is one, one.name
