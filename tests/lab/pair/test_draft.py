"""The weak draft model: its stage, what of it is accepted, and where it is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.lab.pair import recipe
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.measure import acceptance
from deploy.lab.pair.publishing import publish
from orchestrator.errors import ConfigError
from workers.embedded.checkpoints import MODELS
from workers.text.tokenizer_files import load_tokenizer


def test_acceptance_is_the_overlap_of_both_distributions() -> None:
    large, small = (Author(MODELS / name) for name in ("large", "small"))
    assert acceptance(large, large, 4) == pytest.approx(1, abs=1e-4)
    assert 0.7 < acceptance(large, small, 4) < 1


def test_the_stage_needs_no_harvest_and_is_published_beside_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(
        recipe.RECIPES["draft"], batch_tokens=1024, warmup=5, processes=1, compile=False
    )
    monkeypatch.setitem(recipe.RECIPES, "draft", short)
    lines: list[str] = []
    recipe.run("draft", tmp_path, tokens=20_000, log=lines.append)
    assert lines[-1].startswith("draft: 0.")
    assert (
        load_tokenizer(str(tmp_path / "draft")).hash == load_tokenizer(str(MODELS / "large")).hash
    )
    for name in ("small", "large"):
        publish(MODELS / name, tmp_path / name)
    monkeypatch.setattr(recipe, "MODELS", tmp_path / "shipped")
    recipe.run("publish", tmp_path)
    for name in ("small", "large", "draft"):
        assert (tmp_path / "shipped" / name / "model.safetensors").is_file()
    assert not list((tmp_path / "shipped").rglob("state.pt"))


def test_a_stage_that_has_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of small, large, draft"):
        recipe.run("publish", tmp_path)
    with pytest.raises(ConfigError, match="run the stage novice first"):
        recipe.run("harvest", tmp_path)


def test_publishing_does_without_a_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("small", "large"):
        publish(MODELS / name, tmp_path / name)
    monkeypatch.setattr(recipe, "MODELS", tmp_path / "shipped")
    recipe.run("publish", tmp_path)
    assert not (tmp_path / "shipped" / "draft").exists()
