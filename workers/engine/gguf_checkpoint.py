"""A model from one GGUF file: config and weights. Its tokenizer: `workers/text/gguf_tokenizer.py`.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read by its
own package. Every key of the architecture must be known here, and every tensor to the network: one
that is passed over would make a model that computes something else. Quantized weights are unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH,
    GGUFReader,
    GGUFValueType,
    ReaderTensor,
    dequantize,
    get_tensor_name_map,
)

from orchestrator.errors import ConfigError
from workers.model.config import ModelConfig
from workers.model.placement import frequencies
from workers.model.shapes import shapes

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Those that are read; each is transformers' `model_type` too."""

_REQUIRED = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_READ_BELOW = {
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "vocab_size",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"


def read_config(path: str | Path) -> ModelConfig:
    """The file's config.

    Raises:
        ConfigError: the file cannot be read, or says something that is not supported.
    """
    return _config(_open(path), path)


class GgufWeights:
    """The file's tensors, unpacked to float32 one by one.

    Raises:
        ConfigError: as `read_config`.
    """

    def __init__(self, path: str | Path, config: ModelConfig) -> None:
        self._path, self._config = path, config
        table = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
        ours = {table.get_name(name, (".weight", ".bias")): name for name in shapes(config)}
        tensors = {one.name: one for one in _open(path).tensors if one.name != _ROPE_FACTORS}
        self._tensors = {ours.get(name, name): one for name, one in tensors.items()}

    @property
    def names(self) -> Set[str]:
        return self._tensors.keys()

    def read(self, name: str) -> torch.Tensor:
        return _unpack(self._tensors[name], self._config, self._path)


class _Reader(GGUFReader):  # type: ignore[misc]  # untyped
    """The package's reader, without six arrays for every entry of a list: its length alone."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, length = int(self._get(orig_offs, np.uint32)[0]), self._get(orig_offs + 4, np.uint64)
        offset = orig_offs + 12
        if (scalar := self.gguf_scalar_to_np.get(GGUFValueType(kind))) is not None:
            offset += int(length[0]) * np.dtype(scalar).itemsize
        elif kind == GGUFValueType.STRING:
            for _ in range(int(length[0])):
                here = memoryview(self.data)[offset : offset + 8]
                offset += 8 + int.from_bytes(here, "little" if self.byte_order == "I" else "big")
        else:
            raise ValueError("a list of lists, which nothing here has")
        return offset - orig_offs, [length], [0], [GGUFValueType.ARRAY]


def _open(path: str | Path) -> Any:
    if not Path(path).is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        return _Reader(path)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ConfigError(f"{path} is no GGUF file that can be read: {error}") from error


def _config(reader: Any, path: str | Path) -> ModelConfig:
    said = dict(_scalars(reader))
    name = said.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ConfigError(f"{path} is a GGUF file of {name}; supported: {', '.join(ARCHITECTURES)}")
    if said.get("split.count", 1) > 1:
        raise ConfigError(
            f"{path} is one of {said['split.count']} parts: join them with "
            "`llama-gguf-split --merge` and give the whole file"
        )
    begin = f"{name}."
    own = {key.removeprefix(begin): value for key, value in said.items() if key.startswith(begin)}
    if unknown := own.keys() - _REQUIRED.keys() - _READ_BELOW:
        raise ConfigError(f"{path} sets {name}.{min(unknown)}, which is not supported")
    if lacking := _REQUIRED.keys() - own.keys():
        raise ConfigError(f"{path} does not set {name}.{min(lacking)}")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise ConfigError(f"{path} lacks token_embd.weight")
    fields = {ours: own[theirs] for theirs, ours in _REQUIRED.items()}
    heads = fields["num_attention_heads"]
    head_dim = own.get("attention.key_length", fields["hidden_size"] // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise ConfigError(
                f"{path} sets {name}.{key} to {own[key]} where a head has {head_dim}, "
                "which is not supported"
            )
    config = ModelConfig.read({
        **fields,
        "model_type": name,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        # ggml's order: the last is the row
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope(own, name, path),
        "eos_token_id": _ends(said),
        "use_sliding_window": False,
    })  # fmt: skip
    if _ROPE_FACTORS in tensors:
        rope = _llama3_rope(config, tensors[_ROPE_FACTORS], path)
        config = config.model_copy(update={"rope_parameters": rope})
    return config


def _scalars(reader: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values; a list is its length, which no key that is read below may be."""
    for key, field in reader.fields.items():
        if field.types[0] != GGUFValueType.ARRAY:
            yield key, field.contents()
        elif not key.startswith(("tokenizer.", "general.")):
            yield f"{key} (as a list)", int(field.parts[-1][0])


def _ends(said: dict[str, Any]) -> int | list[int] | None:
    """Ids that end a turn; several if the file names an end of turn beside the end of text."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [said[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in said]
    distinct = list(dict.fromkeys(ids))
    return distinct if len(distinct) > 1 else distinct[0] if distinct else None


def _rope(own: dict[str, Any], name: str, path: str | Path) -> dict[str, Any]:
    base = {"rope_theta": own.get("rope.freq_base", 10_000.0)}  # ggml's default
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_type": "default", **base}
    if kind == "linear" and "rope.scaling.factor" in own:
        return {"rope_type": "linear", "factor": own["rope.scaling.factor"], **base}
    raise ConfigError(f"{path} sets {name}.rope.scaling.type to {kind}, which is not supported")


def _llama3_rope(config: ModelConfig, factors: ReaderTensor, path: str | Path) -> dict[str, Any]:
    """Llama 3's positions, of which the file has what each frequency is divided by: the largest is
    the factor; the rest is the same in all of Meta's models, and checked here."""
    divisors = torch.from_numpy(np.array(factors.data, dtype=np.float32))
    rope = {
        **config.rope_parameters,
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, _ = frequencies(config)
    scaled, _ = frequencies(config.model_copy(update={"rope_parameters": rope}))
    if divisors.shape != plain.shape or not torch.allclose(plain / divisors, scaled, rtol=1e-4):
        raise ConfigError(f"{path} scales positions otherwise than Llama 3, which is not supported")
    return rope


def _unpack(tensor: ReaderTensor, config: ModelConfig, path: str | Path) -> torch.Tensor:
    """The tensor in float32; rows of a query or key head of Llama in transformers' order."""
    try:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except (NotImplementedError, ValueError) as error:
        kind = tensor.tensor_type.name
        raise ConfigError(f"{path}: {tensor.name} is stored as {kind}: {error}") from error
    if config.model_type == "llama" and (match := re.search(r"attn_([qk])\.", tensor.name)):
        heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
        # llama.cpp rotates neighbours, transformers the halves of a head.
        paired = values.reshape(heads, -1, 2, *values.shape[1:])
        values = paired.swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))
