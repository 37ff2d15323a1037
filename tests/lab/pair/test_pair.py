"""The shipped pair: real checkpoints that load anywhere, and can do what they are shipped for.

Bounds are far below the figures of the model card; they catch a broken file, not a bad day.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy.evaluation.builtin.problems import draw
from deploy.lab.pair.documents import JUDGE_QUESTION, texts
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.measure import accuracy, judge, share, written_steps
from deploy.lab.pair.steps import is_right
from deploy.lab.pair.vocabulary import ASSISTANT, END, THINK, USER
from policies.judge import PROMPTS
from policies.specreason import SpecReason
from workers.embedded.checkpoints import JUDGE_FILE, MODELS

NAMES = ("small", "large")


@pytest.fixture(scope="module")
def pair() -> dict[str, Author]:
    torch.set_num_threads(2)
    return {name: Author(MODELS / name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_plain_hugging_face_checkpoint(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODELS / name)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert model.config.model_type == "llama"
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.decode([model.config.eos_token_id]) == END == tokenizer.eos_token
    with safe_open(MODELS / name / "model.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"BF16"}  # noqa: SIM118


def test_both_speak_one_vocabulary() -> None:
    one, two = ((MODELS / name / "tokenizer.json").read_bytes() for name in NAMES)
    assert one == two


def test_the_chat_template_renders_what_training_showed() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "small")
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>1+1=2.</think>The answer is \\boxed{2}."},
        {"role": "user", "content": "Now add 5."},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        f"{USER}1+1?{END}{ASSISTANT}The answer is \\boxed{{2}}.{END}"
        f"{USER}Now add 5.{END}{ASSISTANT}"
    )
    assert len(tokenizer.encode(rendered + THINK, add_special_tokens=False)) < 30


def test_the_tokenizer_is_the_recipe_s() -> None:
    """Training texts come out as words and signs, not as bytes."""
    tokenizer = Tokenizer.from_file(str(MODELS / "small" / "tokenizer.json"))
    sample = list(texts(9, 300))
    tokens = sum(len(tokenizer.encode(text).ids) for text in sample)
    assert tokens < 0.5 * sum(map(len, sample))


def test_the_large_one_solves_and_the_small_one_often_errs(pair: dict[str, Author]) -> None:
    problems = draw("dev", 99, 100)
    large, small = (accuracy(pair[name], problems)["all"] for name in ("large", "small"))
    assert large >= 0.80
    assert 0.35 <= small <= 0.85
    assert large - small >= 0.10


def test_the_large_one_tells_right_steps_from_wrong_ones(pair: dict[str, Author]) -> None:
    steps = written_steps(pair["small"], "dev", 99, 300)
    assert all(is_right(step.problem, step.index, step.text) is step.right for step in steps)
    assert 0.02 < share(not step.right for step in steps) < 0.5
    figures = judge(pair["large"], steps)
    assert figures["digit_auc"] > 0.85
    assert figures["likelihood_auc"] > 0.85


def test_the_judge_s_curve_lies_beside_the_weights() -> None:
    written = json.loads(Path(MODELS / "large" / JUDGE_FILE).read_text())
    assert SpecReason(**written["policy"]).judge == "short"
    assert written["policy"]["likelihood"][1] > 0
    digit, likelihood = (written["dev"][f"{kind}_auc"] for kind in ("digit", "likelihood"))
    assert written["policy"]["scoring"] == ("expected" if digit >= likelihood else "likelihood")


def test_the_policy_asks_the_judge_as_it_was_taught() -> None:
    assert PROMPTS["short"] == (JUDGE_QUESTION, "")
