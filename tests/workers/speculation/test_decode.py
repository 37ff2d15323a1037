"""The token loop against transformers: same tokens, same laws, same cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.types import Sampling
from tests.workers.conftest import network_of
from tests.workers.speculation.loops import decoder, stock_tokens, tiny
from workers.model.cache import common_prefix
from workers.model.sampling import draw
from workers.model.target import Target
from workers.model.tree import Tree
from workers.rng import uniform

PROMPTS = [[5, 9, 2, 7], [1, 2, 3], [8] * 40, [300, 20, 10, 5, 4, 3, 2]]
METHODS = {"vanilla": {}, "chain": {"draft": "other"}}
VARIANTS = [
    ("vanilla", {}),
    ("chain", {"draft": "other", "gamma": 3}),
    ("chain", {"draft": "same", "gamma": 5}),
    ("chain", {"draft": "other", "gamma": 0}),
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_greedy_tokens_are_those_of_transformers(family: str, method: str, options: Any) -> None:
    expected = stock_tokens(tiny(family), PROMPTS, 24)
    together = generate(decoder(method, options, max_len=100, family=family), PROMPTS, 24)
    alone = decoder(method, options, slots=1, max_len=100, family=family)
    assert together == expected
    assert [generate(alone, [prompt], 24)[0] for prompt in PROMPTS] == expected


@pytest.mark.parametrize("method", METHODS)
def test_sampling_depends_on_the_seed_and_not_on_the_batch(method: str) -> None:
    warm = Sampling(temperature=1.3, top_p=0.9, top_k=50, seed=11)
    together = generate(decoder(method, METHODS[method]), PROMPTS, 20, sampling=warm)
    last = decoder(method, METHODS[method], slots=4)
    assert generate(last, PROMPTS, 20, sampling=warm) == together
    seed = Sampling(temperature=1.3, top_p=0.9, top_k=50, seed=11 + 3)
    assert generate(last, PROMPTS[3:], 20, sampling=seed)[0] == together[3]
    other = Sampling(temperature=1.3, top_p=0.9, top_k=50, seed=99)
    assert generate(last, PROMPTS[3:], 20, sampling=other)[0] != together[3]


def test_a_plain_call_resumed_half_way_draws_the_same_tokens() -> None:
    warm = Sampling(temperature=1.0, seed=5)
    loop = decoder("vanilla")
    whole = generate(loop, [PROMPTS[0]], 20, sampling=warm)[0]
    rest = generate(loop, [PROMPTS[0] + whole[:8]], 12, sampling=warm)[0]
    assert whole[8:] == rest


def test_a_pass_may_be_cut_between_layers() -> None:
    target = Target(network_of(tiny("qwen3", layers=3)), slots=1, max_len=64)
    tree = [Tree.chain([5, 6, 7])]
    with torch.inference_mode():
        whole = target.forward([0], tree)
        shallow = target.forward([0], tree, layers=(0, 1)).hidden
        deep = target.forward([0], tree, states=shallow, layers=(1, None))
    assert torch.equal(deep.logits, whole.logits)
    assert torch.equal(target.lm_head(whole.hidden[0])[None], whole.logits)


def test_draws_skip_what_has_no_mass() -> None:
    laws = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 4)
    numbers = torch.tensor([0.0, 0.499999, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(laws, numbers).tolist() == [1, 1, 3, 3]


def test_numbers_are_uniform_and_reproducible() -> None:
    numbers = torch.tensor([uniform(3, i, j) for i in range(4000) for j in range(3)])
    assert abs(numbers.mean() - 0.5) < 0.02
    assert numbers.min() >= 0
    assert numbers.max() < 1
    pairs = numbers.view(-1, 3)
    assert abs(torch.corrcoef(pairs.T) - torch.eye(3)).max() < 0.06
    assert uniform(3, 7) == uniform(3, 7) != uniform(4, 7)


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3, 4], [1, 2, 3, 4, 5], 9) == 4
    assert common_prefix([1, 2, 3, 4], [1, 2, 3, 4, 5], 3) == 3
    assert common_prefix([1, 2, 9, 4], [1, 2, 3, 4, 5], 9) == 2
    assert common_prefix([9], [1], 1) == common_prefix([], [1], 1) == 0
    assert common_prefix([1], [1], 1) == 1
    assert common_prefix([1], [1], 0) == 0
    long = list(range(1000))
    for i in (0, 1, 2, 511, 998, 999):
        assert common_prefix(long, [*long[:i], -1, *long[i + 1 :]], len(long)) == i
