"""A checkpoint's default sampling, from its `generation_config.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import ConfigError
from orchestrator.types import PartialSampling, Sampling
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
    names = ("temperature", "top_p", "top_k")
    try:
        given = PartialSampling(**{name: config.get(name) for name in names})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        said = f"{first['loc'][0]}: {first['msg']}, not {first['input']!r:.60}"
        raise ConfigError(f"{file}: {said}") from error
    return given.over(Sampling(temperature=1.0))
