"""The adapter's training: it learns the target's distribution; it is shipped with its target."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deploy.lab.pair import features, kangaroo, publishing, recipe
from deploy.lab.pair.chains import document
from deploy.lab.pair.kangaroo import Distillation, belongs, measure
from tests.workers.conftest import make_model
from workers.embedded.checkpoints import MODELS
from workers.engine.loading import load_model
from workers.model.early_exit import Adapter
from workers.model.placement import rotary_table
from workers.speculation.kangaroo import FOLDER

LARGE = MODELS / "large"


def quiet(_: str) -> None: ...


def test_rates_are_those_of_token_by_token_distributions() -> None:
    distillation = Distillation(make_model(layers=3), 1)
    with torch.no_grad():
        distillation.adapter.out.weight.normal_()
    chains = [([1, 2, 3], [4, 5]), ([9], [8, 7, 6])]
    found = measure(distillation, [document(*chain) for chain in chains])
    overlap, agreement = [], []
    for prompt, reply in chains:
        ids = torch.tensor([prompt + reply[:-1]])
        with torch.no_grad():
            out = distillation.model.model(ids, output_hidden_states=True)
            places = torch.arange(ids.shape[1])[None]
            rotary = rotary_table(
                distillation.model.model.rotary_emb, places, out.hidden_states[1].dtype
            )
            draft = distillation.model.lm_head(distillation.adapter(out.hidden_states[1], rotary))[
                0
            ].softmax(-1)
            target = distillation.model(ids).logits[0].softmax(-1)
        overlap += torch.minimum(draft, target).sum(-1)[len(prompt) - 1 :].tolist()
        agreement += (draft.argmax(-1) == target.argmax(-1))[len(prompt) - 1 :].tolist()
    assert found.overlap == pytest.approx(sum(overlap) / 5, abs=1e-5)
    assert found.agreement == pytest.approx(sum(agreement) / 5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder after seconds of training on a few chains of the shipped model."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "ALIGNED_PROBLEMS", 24)
        patch.setattr(features, "CHAINS", 12)
        patch.setattr(kangaroo, "MEASURED", 4)
        patch.setattr(
            recipe, "ADAPTER_RECIPE", replace(recipe.ADAPTER_RECIPE, batch_tokens=1024, warmup=5)
        )
        recipe.run("kangaroo", runs, tokens=30_000, exit_layer=3, log=quiet)
        first = (runs / "kangaroo" / "adapter.safetensors").read_bytes()
        recipe.run("kangaroo", runs, tokens=40_000, exit_layer=3, resume=True, log=quiet)
        assert (runs / "kangaroo" / "adapter.safetensors").read_bytes() != first
        with pytest.raises(ValueError, match="another exit layer"):
            recipe.run("kangaroo", runs, tokens=40_000, exit_layer=2, resume=True, log=quiet)
        with pytest.raises(ValueError, match="exit_layer must be from 1 to 11, not 12"):
            recipe.run("kangaroo", runs, exit_layer=12, log=quiet)
        with pytest.raises(ValueError, match="trained for exit_layer 3, not 2"):
            recipe.run("kangaroo", runs, exit_layer=2, init_from=runs / "kangaroo", log=quiet)
    return runs


def test_the_adapter_learns_to_say_what_the_target_says(trained: Path) -> None:
    config = json.loads((trained / "kangaroo" / "adapter.json").read_text())
    assert config["shape"]["exit_layer"] == 3
    model = load_model(str(LARGE))
    untrained = Distillation(model, 3)
    with gzip.open(trained / "chains.jsonl.gz", "rt") as file:
        documents = [document(*json.loads(line)) for line in file][:4]
    before = measure(untrained, documents)
    assert config["measured"]["loss"] < 0.8 * before.loss
    assert config["measured"]["overlap"] > before.overlap + 0.1
    Adapter.load(trained / "kangaroo", model, exit_layer=3)


def test_an_adapter_is_shipped_with_the_weights_it_was_trained_on(
    trained: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    publishing.publish(LARGE, large)
    lines: list[str] = []
    publishing.publish_adapter(tmp_path / "nothing", large, lines.append)
    assert not (large / FOLDER).exists()
    publishing.publish_adapter(trained / "kangaroo", large, lines.append)
    assert sorted(path.name for path in (large / FOLDER).iterdir()) == [
        "adapter.json",
        "adapter.safetensors",
    ]
    assert belongs(large / FOLDER, large)
    assert lines == []
    weights = large / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    publishing.publish_adapter(trained / "kangaroo", large, lines.append)
    assert "trained on other weights" in lines[0]


def test_the_shipped_adapter_is_the_shipped_model_s() -> None:
    assert belongs(LARGE / FOLDER, LARGE)
