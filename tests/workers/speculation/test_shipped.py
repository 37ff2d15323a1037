"""The drafters that ship with the embedded pair fit its weights."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from deploy.lab.pair.generation import generate
from orchestrator.types import Message, Transcript
from workers.engine.loading import LoadedTarget, open_target
from workers.speculation import build
from workers.speculation.decode import Decoder
from workers.text.prompt import PromptRenderer

PROBLEMS, MOST = 6, 120


@pytest.fixture(scope="module")
def large() -> LoadedTarget:
    return open_target("embedded:large", device="cpu", dtype=None, slots=1)


@pytest.fixture(scope="module")
def prompts(large: LoadedTarget) -> list[list[int]]:
    rendered = PromptRenderer(large.tokenizer)
    problems = draw("dev", 3, PROBLEMS)
    return [rendered.transcript(Transcript((Message("user", one.question),))) for one in problems]


def decode(
    large: LoadedTarget, prompts: list[list[int]], method: str, **parameters: Any
) -> tuple[list[list[int]], float]:
    """What a method says greedily, and its tokens a round."""
    made = build(method, large.target, large.load_draft, **parameters)
    decoder = Decoder(large.target, {method: made})
    large.target.cache.lengths[0] = 0
    before = large.target.passes
    said = generate(decoder, prompts, MOST, stop_token_ids=sorted(large.stop_token_ids))
    rounds = large.target.passes - before - len(prompts)
    return said, (sum(map(len, said)) - len(prompts)) / rounds


@pytest.fixture(scope="module")
def plain(large: LoadedTarget, prompts: list[list[int]]) -> list[list[int]]:
    said, rate = decode(large, prompts, "vanilla")
    assert rate == 1
    return said


@pytest.mark.parametrize(
    ("method", "parameters", "least"),
    [
        ("chain", {"draft": "embedded:small", "gamma": 6}, 4.5),
        ("chain", {"draft": "embedded:draft", "gamma": 4}, 1.8),
        ("kangaroo", {}, 3.5),
        ("fspad", {}, 4.5),
    ],
)
def test_drafts_are_accepted_and_change_nothing(
    large: LoadedTarget,
    prompts: list[list[int]],
    plain: list[list[int]],
    method: str,
    parameters: dict[str, Any],
    least: float,
) -> None:
    said, rate = decode(large, prompts, method, **parameters)
    assert said == plain
    assert rate > least
