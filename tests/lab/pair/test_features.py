"""Training of the feature drafters: it learns, goes on, and is the same for both variants."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deploy.lab.pair import features, recipe
from deploy.lab.pair.batches import collate
from deploy.lab.pair.chains import document, in_turn
from deploy.lab.pair.features import HeadRecipe, losses, train_head
from orchestrator.errors import InvalidRequest
from tests.workers.conftest import make_model, make_tokenizer, save
from workers.engine.loading import load_model
from workers.speculation.feature_head import VARIANTS, FeatureHead, Variant

RECIPE = HeadRecipe("fspad", tokens=20_000, batch_tokens=512, warmup=5)


def quiet(_: str) -> None: ...


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("large"), tokenizer, make_model(vocabulary=len(tokenizer)))


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Texts that repeat themselves, so that there is something to learn from few."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("chains")
    paths = (folder / "greedy.gz", folder / "sampled.gz")
    for path in paths:
        with gzip.open(path, "wt") as file:
            for _ in range(8):
                prompt = [rng.randrange(300) for _ in range(4)]
                file.write(json.dumps([prompt, prompt * 6]) + "\n")
    return paths


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_head_learns_is_saved_and_goes_on(
    variant: Variant, large: Path, chains: tuple[Path, ...], tmp_path: Path
) -> None:
    short = replace(RECIPE, variant=variant)
    train_head(short, large, chains, tmp_path, log=quiet)
    model = load_model(str(large))
    source = in_turn(chains, 0)
    batch = collate([next(source) for _ in range(16)], 32, torch.float32, "cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        before, _ = losses(FeatureHead(model, variant), model, batch.tokens, batch.at, short)
        after, agreed = losses(
            FeatureHead.load(model, variant, tmp_path), model, batch.tokens, batch.at, short
        )
    assert after < 0.7 * before
    assert len(agreed) == short.steps
    step = torch.load(tmp_path / "state.pt")["step"]
    longer = replace(short, tokens=21_000)
    train_head(longer, large, chains, tmp_path, resume=True, log=quiet)
    assert torch.load(tmp_path / "state.pt")["step"] > step


def test_a_seed_decides_the_run(large: Path, chains: tuple[Path, ...], tmp_path: Path) -> None:
    made = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        short = replace(RECIPE, tokens=2_000, seed=seed)
        train_head(short, large, chains, tmp_path / name, log=quiet)
        made[name] = torch.load(tmp_path / name / "state.pt")["head"]["fuse.weight"]
    assert torch.equal(made["a"], made["b"])
    assert not torch.equal(made["a"], made["c"])


def test_only_replies_are_learnt() -> None:
    documents = [document([1, 2, 3], [4, 5]), document([7], [8])]
    batch = collate(documents, 6, torch.float32, "cpu")
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 0], [7, 8, 0, 0, 0, 0]]
    assert batch.at.tolist() == [2, 3, 6]
    assert batch.count == 7


def test_the_loss_is_zero_for_the_features_themselves() -> None:
    """A head whose output is the feature itself: each step is measured against it."""
    model = make_model()
    head = FeatureHead(model, "eagle2")
    batch = collate([document([1, 2, 3], [4, 5, 6])], 8, torch.float32, "cpu")
    truth = model.model(batch.tokens).last_hidden_state
    head.norm.forward = lambda _: truth  # type: ignore[method-assign]
    loss, agreed = losses(head, model, batch.tokens, batch.at, replace(RECIPE, steps=2))
    assert float(loss) == pytest.approx(0, abs=1e-6)
    assert agreed.tolist() == [1, 1]


def test_texts_of_both_kinds_take_turns(chains: tuple[Path, ...]) -> None:
    source = in_turn(chains, 0)
    drawn = [tuple(next(source).tokens) for _ in range(16)]
    with gzip.open(chains[0], "rt") as file:
        greedy = {tuple(prompt + reply) for prompt, reply in map(json.loads, file)}
    assert [tokens in greedy for tokens in drawn] == [True, False] * 8


def test_the_stage_trains_for_the_published_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "CHAINS", 3)
    lines: list[str] = []
    recipe.run("eagle2", tmp_path, tokens=10_000, seed=4, log=lines.append)
    assert (tmp_path / "eagle2-4" / "model.safetensors").exists()
    assert any("eagle2: " in line and "seed 4" in line for line in lines)
    written = (tmp_path / "own-sampled.jsonl.gz").stat().st_mtime_ns
    recipe.run("fspad", tmp_path, tokens=10_000, log=lines.append)
    assert (tmp_path / "fspad" / "config.json").exists()
    assert (tmp_path / "own-sampled.jsonl.gz").stat().st_mtime_ns == written


def test_a_seed_is_for_drafters_only() -> None:
    from deploy.lab.commands.train import train

    with pytest.raises(InvalidRequest, match="--seed is for the stages fspad, eagle2 only"):
        train(["tokenizer", "fspad"], seed=3)
