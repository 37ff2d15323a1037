"""A checkpoint's default sampling, from its `generation_config.json`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.types import Sampling
from workers.text.gguf_tokenizer import is_gguf
from workers.text.tokenizer_files import checkpoint_folder, read_object

FILE = "generation_config.json"


def sampling_defaults(model: str | Path) -> Sampling:
    """Return a checkpoint's default sampling: greedy unless its file has `do_sample`, as in
    transformers. A GGUF file has no such file.

    Raises:
        ConfigError: a value is out of range.
    """
    if is_gguf(model):
        return Sampling()
    file = checkpoint_folder(model) / FILE
    try:
        config = read_object(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if config.get("do_sample") is not True:
        return Sampling()
    temperature = _number(file, config, "temperature", 1.0)
    top_p, top_k = _number(file, config, "top_p", 1.0), _number(file, config, "top_k", 0)
    if temperature > 2 or not 0 < top_p <= 1 or top_k != int(top_k):
        raise ConfigError(
            f"{file}: expected temperature from 0 to 2, top_p above 0 and at most 1, and a whole "
            f"top_k, not {temperature:g}, {top_p:g}, {top_k:g}"
        )
    return Sampling(temperature, top_p, int(top_k))


def _number(file: Path, config: dict[str, Any], name: str, absent: float) -> float:
    value = config.get(name)
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{file}: {name} must be a number, not {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ConfigError(f"{file}: {name} must be finite and at least 0, not {value:g}")
    return value
