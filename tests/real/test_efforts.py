"""Over public chat templates: which have levels of effort, and what each level writes.

pytest -m real tests/real/test_efforts.py
"""

from __future__ import annotations

import pytest

from orchestrator.efforts import SCALE
from orchestrator.types import Message, Transcript
from tests.real.test_chat_templates import renderers

QUESTION = (Message("user", "2+2?"),)
# name: the variable, its levels, and a part of the prompt for each level that is asked for, in the
# order of SCALE ("-": the template's default prompt)
LEVELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Kimi-K3": (
        "thinking_effort",
        "low high max",
        tuple(
            f"thinking_effort={level}`" for level in ("low", "low", "high", "high", "max", "max")
        ),
    ),
    "deepseek-ai-DeepSeek-V4": (
        "reasoning_effort",
        "max",
        ("-", "-", "-", "-", "-", "Reasoning Effort: Absolute maximum"),
    ),
    "deepseek-ai-DeepSeek-V4-Flash-0731": (
        "reasoning_effort",
        "high max",
        (
            *("-", "-", "-", "Reasoning Effort: Absolute maximum"),
            *["Reasoning Effort: Beyond maximum"] * 2,
        ),
    ),
    "muse-glimmer": (
        "reasoning_strength",
        "low medium high",
        tuple(
            f"Reasoning strength: {level}."
            for level in ("low", "low", "medium", "high", "high", "high")
        ),
    ),
    "openai-gpt-oss-120b": (
        "reasoning_effort",
        "low medium high",
        tuple(f"Reasoning: {level}\n" for level in ("low", "low", "medium", *["high"] * 3)),
    ),
    "tencent-Hy3": (
        "reasoning_effort",
        "low high",
        tuple(f"reasoning_effort:{level}" for level in ("low", "low", *["high"] * 4)),
    ),
    "upstage-Solar-Open-100B": (
        "reasoning_effort",
        "minimal low",
        (*["<|begin|>assistant<|content|>"] * 2, "-", "-", "-", "-"),
    ),
}
SWITCHES = {
    "Cohere2MoE", "GLM-4.6", "GLM-4.7-Flash", "HuggingFaceTB-SmolLM3-3B", "Kimi-K3", "MiniMax-M3",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NVIDIA-Nemotron-Nano-v2", "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "ibm-granite-granite-3.3-2B-Instruct", "tencent-Hy3",
}  # fmt: skip
"""Some of the templates that switch the thought, and all families that do it by another variable
than `enable_thinking`."""


def prompt(name: str, effort: str = "", thinking: bool = True) -> str:
    prompts = renderers()[name]
    asked = Transcript(QUESTION, effort=effort)
    ids = prompts.transcript(asked if thinking else asked.without_thought())
    return prompts.tokenizer.decode(ids)


def test_no_other_template_has_levels() -> None:
    for name in renderers().keys() - LEVELS.keys():
        assert renderers()[name].efforts is None
        assert {prompt(name, effort) for effort in SCALE} == {prompt(name)}


@pytest.mark.parametrize("name", LEVELS)
def test_level_in_prompt_out(name: str) -> None:
    efforts, default = renderers()[name].efforts, prompt(name)
    variable, levels, parts = LEVELS[name]
    assert efforts is not None
    assert (efforts.variable, efforts.levels) == (variable, tuple(levels.split()))
    for effort, part in zip(SCALE, parts, strict=True):
        written = prompt(name, effort)
        assert written == default if part == "-" else part in written
        assert prompt(name, effort, thinking=False) == prompt(name, thinking=False)


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_switch_in_prompt_out(name: str) -> None:
    assert prompt(name) != prompt(name, thinking=False)
