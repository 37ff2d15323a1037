"""A checkpoint's tensors, checked against its config."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from orchestrator.errors import ConfigError
from workers.model.config import ModelConfig
from workers.model.network import Network
from workers.model.packed import Packing
from workers.model.shapes import EMBEDDING, HEAD, shapes
from workers.text.tokenizer_files import checkpoint_folder, read_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_COMPUTED = "rotary_emb.inv_freq"  # that old checkpoints store


class Weights(Protocol):
    """A checkpoint's tensors by transformers' names; what has none there keeps its own."""

    @property
    def names(self) -> Set[str]: ...

    def read(self, name: str) -> Tensor: ...


def fill(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: str,
    packing: Packing | None,
    folder: str,
) -> Network:
    """The network with these weights on its device.

    Raises:
        ConfigError: the weights are not those that the config describes.
    """
    stored = _stored_names(weights.names, tied=config.tie_word_embeddings)
    if config.tie_word_embeddings and HEAD in stored:
        if torch.equal(weights.read(stored[HEAD]), weights.read(stored[EMBEDDING])):
            del stored[HEAD]
        else:  # as in transformers, what is stored counts
            config = config.model_copy(update={"tie_word_embeddings": False})
    expected = shapes(config)
    lacking = expected.keys() - stored.keys()
    unknown = {stored[name] for name in stored.keys() - expected.keys()}
    for different, problem in (
        (lacking, "lacks weights that its config describes; fetch it again"),
        (unknown, "has weights that its config does not describe; correct one of them"),
    ):
        if different:
            first = sorted(different)[:3]
            more = len(different) - len(first)
            shown = ", ".join(first) + (f" and {more} more" if more else "")
            raise ConfigError(f"the checkpoint {problem}: {shown}")

    def read(name: str) -> Tensor:
        weight, shape = weights.read(stored[name]), expected[name]
        if weight.shape != shape:
            raise ConfigError(f"{name} is {tuple(weight.shape)}, expected {shape}")
        return weight.to(device, dtype)

    return Network.build(config, read, packing, folder)


def _stored_names(names: Set[str], *, tied: bool) -> dict[str, str]:
    """The names that a checkpoint's tensors have there, by ours.

    A base model is saved without the first part of its names; of tied weights either may be saved.
    """
    first = "" if any(name.startswith("model.") for name in names) else "model."
    stored = {
        name if name == HEAD else first + name: name
        for name in names
        if not name.endswith(_COMPUTED)
    }
    if tied and EMBEDDING not in stored and HEAD in stored:
        stored[EMBEDDING] = stored[HEAD]
    return stored


class Safetensors:
    """The weights of a folder or a Hugging Face id, which are downloaded.

    Raises:
        ConfigError: there are none.
    """

    def __init__(self, model: str) -> None:
        folder, files = checkpoint_folder(model, SINGLE, INDEX), [SINGLE]
        if not (folder / SINGLE).is_file() and (folder / INDEX).is_file():
            files = sorted(set(read_object(folder / INDEX).get("weight_map", {}).values()))
            folder = checkpoint_folder(model, *files)
        if absent := [name for name in files if not (folder / name).is_file()]:
            raise ConfigError(
                f"{folder} lacks {absent[0]}; weights are read from {SINGLE} or its index"
            )
        self._by_name: dict[str, Any] = {}
        for name in files:
            file: Any = safe_open(folder / name, "pt")
            self._by_name |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> Set[str]:
        return self._by_name.keys()

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._by_name[name].get_tensor(name)
        return tensor
