"""Copies what training left to where `embedded:` finds it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.lab.pair.kangaroo import belongs
from orchestrator.errors import ConfigError
from workers.embedded.checkpoints import JUDGE_FILE
from workers.model.early_exit import CONFIG, WEIGHTS
from workers.speculation.feature_head import VARIANTS
from workers.speculation.kangaroo import FOLDER

CHECKPOINT = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", JUDGE_FILE,
)  # fmt: skip
"""The files of a checkpoint that users load; nothing of the optimizer."""


def publish_all(runs: Path, models: Path, log: Callable[[str], None]) -> None:
    """Copy what is there of the run folder's pair and its drafters to `models`.

    Raises:
        ConfigError: nothing is.
    """
    kinds = ("small", "large", "draft", "kangaroo", *VARIANTS)
    if not any((runs / kind).is_dir() for kind in kinds):
        raise ConfigError(f"{runs}: expected one of {', '.join(kinds)} to publish, found none")
    for name in ("small", "large", "draft"):
        if name != "draft" or (runs / name).exists():
            publish(runs / name, models / name)
    publish_adapter(runs / "kangaroo", models / "large", log)
    for variant in VARIANTS:
        if (runs / variant).exists():
            publish(runs / variant, models / "large" / variant)


def publish(trained: Path, published: Path, names: Sequence[str] = CHECKPOINT) -> None:
    """Copy those of the named files that exist."""
    published.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (trained / name).exists():
            shutil.copyfile(trained / name, published / name)


def publish_adapter(trained: Path, large: Path, log: Callable[[str], None]) -> None:
    """Copy the adapter into the folder of the large model that it was trained on.

    Logs a line where the adapter published there was trained on other weights.
    """
    published = large / FOLDER
    if belongs(trained, large):
        publish(trained, published, (CONFIG, WEIGHTS))
    elif published.exists() and not belongs(published, large):
        log(f"publish: {published} was trained on other weights; run the stage kangaroo")
