"""The shipped pair: real checkpoints that load anywhere, and can do what they are shipped for.

Bounds are far below the figures of the model card; they catch a broken file, not a bad day.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy.evaluation.builtin.problems import draw
from deploy.lab.pair.documents import JUDGE_QUESTION, texts
from deploy.lab.pair.harvest import Author, own_steps, step_places
from deploy.lab.pair.steps import DELIMITER, is_right
from deploy.lab.pair.vocabulary import ASSISTANT, END, THINK, USER
from deploy.lab.stock import stock
from orchestrator.types import Sampling
from policies.judge import PROMPTS, JudgePrompt
from policies.specreason import SpecReason
from workers.embedded.checkpoints import JUDGE_FILE, MODELS

NAMES = ("small", "large")


@pytest.fixture(scope="module")
def pair() -> dict[str, Author]:
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
    shares = {}
    for name, author in pair.items():
        made = author.write([author.prefix(one, []) for one in problems], 320, Sampling())
        texts = [author.tokenizer.decode(ids) for ids in made]
        answers = [text.rpartition("\\boxed{")[2].partition("}")[0] for text in texts]
        shares[name] = sum(a == one.answer for a, one in zip(answers, problems, strict=True)) / 100
    assert shares["large"] >= 0.80
    assert 0.35 <= shares["small"] <= 0.85
    assert shares["large"] - shares["small"] >= 0.10


def test_the_large_one_tells_right_steps_from_wrong_ones(pair: dict[str, Author]) -> None:
    """What the small one writes in the place of each step: the judge's expected digit, in pairs."""
    rng, large, network = random.Random(99), pair["large"], stock(MODELS / "large")
    places = [place for one in draw("dev", 99, 80) for place in step_places(one, rng)]
    digits = [large.tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    scores: dict[bool, list[float]] = {True: [], False: []}
    for place, text in zip(places, own_steps(pair["small"], places, Sampling()), strict=True):
        problem, index, before = place
        if not text:
            continue
        step = text + (DELIMITER if index < len(problem.facts) else "")
        question = f"{END}{USER}{JUDGE_QUESTION}{END}{ASSISTANT}"
        ids = large.prefix(problem, [*before, step, question])
        with torch.inference_mode():
            chances = network(torch.tensor([ids])).logits[0, -1, digits].softmax(-1)
        expected = float(chances @ torch.arange(10.0))
        scores[is_right(problem, index, text)].append(expected)
    assert 0.02 < len(scores[False]) / len(places) < 0.5
    pairs = [right > wrong for right in scores[True] for wrong in scores[False]]
    assert sum(pairs) / len(pairs) > 0.85


def test_the_judge_s_curve_lies_beside_the_weights() -> None:
    written = json.loads(Path(MODELS / "large" / JUDGE_FILE).read_text())
    assert SpecReason(**written["policy"]).judge == "short"
    assert written["policy"]["likelihood"][1] > 0
    digit, likelihood = (written["dev"][f"{kind}_auc"] for kind in ("digit", "likelihood"))
    assert written["policy"]["scoring"] == ("expected" if digit >= likelihood else "likelihood")


def test_the_policy_asks_the_judge_as_it_was_taught() -> None:
    assert PROMPTS["short"] == JudgePrompt(instruction=JUDGE_QUESTION)
