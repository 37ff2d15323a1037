"""From a checkpoint's tensors to a network, layer by layer.

Each layer is packed before the next is read, so at most one lies in memory as it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from orchestrator.errors import ConfigError
from workers.engine.memory import empty_network
from workers.model.config import ModelConfig
from workers.model.network import Network
from workers.model.packed import Packing, pack
from workers.text.tokenizer_files import checkpoint_folder, read_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
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
) -> Network:
    """The network with these weights on its device, in eval mode.

    Raises:
        ConfigError: the weights are not those that the config describes.
    """
    network = empty_network(config)
    shapes = {name: one.shape for name, one in network.state_dict().items()}
    stored = {name for name in weights.names if not name.endswith(_COMPUTED)}
    needed = shapes.keys() - ({HEAD} if config.tie_word_embeddings else set())
    for different, problem in (
        (needed - stored, "lacks weights that its config describes; fetch it again"),
        (stored - shapes.keys(), "has weights that its config does not describe; correct one"),
    ):
        if different:
            first = sorted(different)[:3]
            more = len(different) - len(first)
            shown = ", ".join(first) + (f" and {more} more" if more else "")
            raise ConfigError(f"the checkpoint {problem}: {shown}")
    tied = HEAD not in stored or (
        config.tie_word_embeddings and torch.equal(weights.read(HEAD), weights.read(EMBEDDING))
    )  # as in transformers, what is stored counts
    if tied:
        del shapes[HEAD]
    for prefix, part in _parts(network):
        state = {}
        for name in part.state_dict():
            if prefix + name not in shapes:
                continue
            tensor = weights.read(prefix + name)
            if tensor.shape != shapes[prefix + name]:
                expected = tuple(shapes[prefix + name])
                raise ConfigError(f"{prefix}{name} is {tuple(tensor.shape)}, expected {expected}")
            state[name] = tensor.to(device, dtype)
        part.load_state_dict(state, assign=True, strict=False)
        if packing is not None:
            pack(part, packing)
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.eval().requires_grad_(False)
    if packing is not None:
        pack(network, packing)
    return network


def _parts(network: Network) -> Iterator[tuple[str, nn.Module]]:
    yield "model.embed_tokens.", network.model.embed_tokens
    for index, layer in enumerate(network.model.layers):
        yield f"model.layers.{index}.", layer
    yield "model.norm.", network.model.norm
    yield "lm_head.", network.lm_head


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
