"""Copies trained checkpoints to the folder that `embedded:` names."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.lab.pair.kangaroo import belongs
from orchestrator.errors import ConfigError
from workers.model.early_exit import CONFIG, WEIGHTS
from workers.speculation.feature_head import VARIANTS
from workers.speculation.kangaroo import FOLDER

CHECKPOINT = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PLACES: dict[str, str] = {
    "small": "small", "large": "large", "draft": "draft", "kangaroo": f"large/{FOLDER}",
    **{variant: f"large/{variant}" for variant in VARIANTS},
}  # fmt: skip
"""Stage -> folder of what it trained, below the published models."""


def publish_all(runs: Path, models: Path) -> None:
    """Copy every checkpoint of the run folder to `models`.

    Raises:
        ConfigError: there is none, or the adapter was trained on another large model.
    """
    found = [stage for stage in PLACES if (runs / stage).is_dir()]
    if not found:
        raise ConfigError(f"{runs}: expected one of {', '.join(PLACES)} to publish, found none")
    for stage in found:
        publish(runs / stage, models / PLACES[stage])
    adapter = models / PLACES["kangaroo"]
    if adapter.exists() and not belongs(adapter, models / "large"):
        raise ConfigError(f"{adapter} was trained on other weights: run the stage kangaroo")


def publish(trained: Path, published: Path) -> None:
    """Copy the files of a checkpoint, a head or an adapter."""
    published.mkdir(parents=True, exist_ok=True)
    for name in (*CHECKPOINT, CONFIG, WEIGHTS):
        if (trained / name).exists():
            shutil.copyfile(trained / name, published / name)
