"""How a checkpoint wants tokens to be drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.types import GREEDY, Sampling
from workers.embedded.checkpoints import resolve
from workers.text.generation_config import FILE, sampling_defaults


def written(folder: Path, config: Any) -> Path:
    (folder / FILE).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({}, GREEDY),
        ({"do_sample": False, "temperature": 0.6}, GREEDY),
        ({"temperature": 0.6, "top_p": 0.9}, GREEDY),  # as transformers reads it
        ({"do_sample": True}, Sampling(1.0)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, Sampling(0.6, 0.95)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0},
         Sampling(0.6, 0.95, 20)),
        ({"do_sample": True, "temperature": None, "top_k": None}, Sampling(1.0)),
        ({"do_sample": True, "temperature": 0}, GREEDY),
    ],
)  # fmt: skip
def test_what_the_file_says(tmp_path: Path, config: Any, sampling: Sampling) -> None:
    assert sampling_defaults(written(tmp_path, config)) == sampling


def test_without_a_file_it_is_greedy(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == GREEDY
    assert sampling_defaults(resolve("embedded:large")) == GREEDY


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        {"do_sample": True, "temperature": "warm"},
        {"do_sample": True, "temperature": True},
        {"do_sample": True, "temperature": -1},
        {"do_sample": True, "temperature": 3},
        {"do_sample": True, "top_p": 0},
        {"do_sample": True, "top_p": 1.5},
        {"do_sample": True, "top_k": 2.5},
        '{"do_sample": true, "top_k": Infinity}',
        '{"do_sample": true, "temperature": NaN}',
    ],
)
def test_what_is_no_sampling_is_refused_with_the_file(tmp_path: Path, config: Any) -> None:
    with pytest.raises(ConfigError, match=FILE):
        sampling_defaults(written(tmp_path, config))
