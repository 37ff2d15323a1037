"""The stages of the pair at tiny sizes, and the order in which they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from deploy.lab.pair import recipe
from deploy.lab.pair.mistakes import load_mistakes
from orchestrator.errors import ConfigError, InvalidRequest
from workers.text.tokenizer_files import load_tokenizer


def quiet(_: str) -> None: ...


def test_the_pair_is_trained_and_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "TOKENIZER_PROBLEMS", 500)
    monkeypatch.setattr(recipe, "HARVESTED_PROBLEMS", 64)
    monkeypatch.setattr(recipe, "MODELS", tmp_path / "shipped")
    for name, plan in recipe.RECIPES.items():
        tiny = replace(plan, width=32, batch_tokens=1024, warmup=5, flag_layer=1)
        monkeypatch.setitem(recipe.RECIPES, name, replace(tiny, layers=2))
    for stage in ("tokenizer", "novice", "harvest", "small", "rehearse", "large", "draft"):
        recipe.run(stage, tmp_path, tokens=10_000, log=quiet)
    assert len(load_mistakes(tmp_path / "harvest.jsonl.gz")) == 64
    recipe.run("publish", tmp_path)
    vocabularies = set()
    for name in ("small", "large", "draft"):
        folder = tmp_path / "shipped" / name
        assert LlamaForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2
        vocabularies.add(load_tokenizer(str(folder)).hash)
    assert len(vocabularies) == 1
    assert not (tmp_path / "shipped" / "novice").exists()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("publish", "expected one of small, large, draft"),
        ("novice", "run the stage tokenizer first"),
        ("harvest", "run the stage novice first"),
        ("large", "run the stage tokenizer first"),
    ],
)
def test_a_stage_that_has_not_run_is_named(stage: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        recipe.run(stage, tmp_path)


def test_an_unknown_stage_is_refused() -> None:
    from deploy.lab.commands.train import train

    with pytest.raises(InvalidRequest, match="no such stage: align"):
        train(["tokenizer", "align"])
