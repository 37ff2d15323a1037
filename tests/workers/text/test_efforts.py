"""Levels of effort in chat templates: found by what they write, and written into prompts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.efforts import SCALE, TemplateEfforts
from orchestrator.types import Message, Transcript
from tests.workers.text.test_thinking import NEWLINE, TURNS
from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.dialects.openai import OPENAI
from workers.remote.dialects.sglang import SGLANG
from workers.remote.dialects.vllm import VLLM
from workers.remote.request_builder import prompt_fields
from workers.text.prompt import PromptRenderer

REPLY = (
    TURNS + "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% else %}<think>{% endif %}" + NEWLINE
)
STRICT = (
    "{% set level = reasoning_effort | default('xhigh') %}"
    "{% if level not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no such level') }}"
    "{% endif %}{% if level != 'medium' %}Think at {{ level }}.\n{% endif %}"
)
LOOSE = (
    "{% set level = reasoning_effort if reasoning_effort in ['low', 'high'] else 'max' %}"
    "Think at {{ level }}.\n"
)
WRITTEN = "Reasoning: {{ reasoning_strength or 'medium' }}\n"
TEMPLATES: dict[str, tuple[str, TemplateEfforts | None, str]] = {
    "strict": (STRICT, TemplateEfforts("reasoning_effort", ("low", "medium", "xhigh")),
               "low low - xhigh xhigh xhigh"),
    "loose": (LOOSE, TemplateEfforts("reasoning_effort", ("low", "high"), strict=False),
              "max low high high max max"),
    "written": (WRITTEN, TemplateEfforts("reasoning_strength", ("low", "medium", "high")),
                "low low medium high high high"),
    "a switch alone": ("{% set on = reasoning_effort | default('') != 'none' %}", None,
                       "- - - - - -"),
    "none": ("", None, "- - - - - -"),
}  # fmt: skip
QUESTION = (Message("user", "2+2?"),)


@pytest.mark.parametrize("name", TEMPLATES)
def test_levels_are_found_and_written(
    name: str, prompts_with: Callable[..., PromptRenderer]
) -> None:
    before, efforts, levels = TEMPLATES[name]
    prompts = prompts_with(template=before + REPLY)
    assert prompts.efforts == efforts

    def read(transcript: Transcript) -> str:
        return prompts.tokenizer.decode(prompts.transcript(transcript))

    default = read(Transcript(QUESTION))
    for asked, level in zip(SCALE, levels.split(), strict=True):
        prompt = read(Transcript(QUESTION, effort=asked))
        said = prompt.partition("<|im_start|>")[0].strip().rstrip(".").rpartition(" ")[2]
        assert said == ("" if level == "-" else level)
        off = Transcript(QUESTION, effort=asked).without_thought()
        assert read(off) == read(Transcript(QUESTION).without_thought())
    assert read(Transcript(QUESTION)) == default  # no level stays in the cache


async def test_a_long_prompt_has_its_level(prompts_with: Callable[..., PromptRenderer]) -> None:
    prompts = prompts_with(template=WRITTEN + REPLY)
    long = (Message("user", "2+2? " * 5000),)
    for effort in ("low", "high"):
        ids = await prompts.prepare(Transcript(long, effort=effort), None)
        assert prompts.tokenizer.decode(ids).startswith(f"Reasoning: {effort}\n")


def test_a_server_that_renders_the_prompt_gets_the_level(
    prompts_with: Callable[..., PromptRenderer],
) -> None:
    prompts = prompts_with(template=STRICT + REPLY)
    asked = Transcript(QUESTION, effort="minimal")
    variables = prompts.effort_variables(asked)
    assert variables == {"reasoning_effort": "low"}
    assert prompts.effort_variables(Transcript(QUESTION)) == {}
    ids = prompts.transcript(asked)
    *_, reply = prompt_fields(prompts, "chat", ids, asked)["messages"]
    assert reply["content"] == "<think>\n"
    assert OPENAI.effort_fields(variables) == {"reasoning_effort": "low"}
    for dialect in (VLLM, SGLANG, LLAMA_CPP):
        assert dialect.effort_fields(variables) == {"chat_template_kwargs": variables}
