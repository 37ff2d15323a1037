"""A model from one GGUF file: config and weights. Its tokenizer: `workers/text/gguf_tokenizer.py`.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read by its
own package. Every key of the architecture must be known here, and every tensor to the network: one
that is passed over would make a model that computes something else. Quantized weights are unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import (
    MODEL_ARCH,
    GGUFReader,
    GGUFValueType,
    ReaderTensor,
    dequantize,
    get_tensor_name_map,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from orchestrator.errors import ConfigError

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Transformers' class of a GGUF architecture."""

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


def read_config(path: str | Path) -> Any:
    """The file's config as transformers has it; raise ConfigError at what is not supported."""
    return _config(_open(path), path)


def read_network(path: str | Path, dtype: torch.dtype) -> Any:
    """The network with its weights unpacked to `dtype`, on the CPU; raise ConfigError at a tensor
    that has no place in it, or lacks."""
    reader = _open(path)
    config = _config(reader, path)
    tensors = {one.name: one for one in reader.tensors if one.name != _ROPE_FACTORS}
    network_class = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        expected = {
            name: tuple(one.shape) for name, one in network_class(config).state_dict().items()
        }
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    names = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in expected.items():
        tensor = tensors.pop(names.get_name(name, (".weight", ".bias")), None)
        if tensor is None:
            raise ConfigError(f"{path} lacks {name}")
        weights[name] = _unpack(tensor, config, path).to(dtype)
        if tuple(weights[name].shape) != shape:
            raise ConfigError(f"{path}: {name} is {tuple(weights[name].shape)}, expected {shape}")
    if tensors:
        raise ConfigError(f"{path} has {min(tensors)}, which a {config.architectures[0]} has not")
    network = network_class.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, attn_implementation="sdpa"
    )
    network.generation_config.eos_token_id = config.eos_token_id
    return network


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


def _config(reader: Any, path: str | Path) -> Any:
    said = dict(_scalars(reader))
    name = said.get("general.architecture")
    if name not in MODEL_TYPES:
        raise ConfigError(f"{path} is a GGUF file of {name}; supported: {', '.join(MODEL_TYPES)}")
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
    network_class = getattr(transformers, MODEL_TYPES[name])
    config = network_class.config_class(
        **fields,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=int(tensors["token_embd.weight"].shape[-1]),  # ggml's order: the last is the row
        tie_word_embeddings="output.weight" not in tensors,
        rope_parameters=_rope(own, name, path),
        bos_token_id=said.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=_ends(said),
        pad_token_id=said.get("tokenizer.ggml.padding_token_id"),
        architectures=[MODEL_TYPES[name]],
    )
    if _ROPE_FACTORS in tensors:
        config.rope_parameters = _llama3_rope(config, tensors[_ROPE_FACTORS], path)
    return config


def _scalars(reader: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values; a list is its length, which no key that is read below may be."""
    for key, field in reader.fields.items():
        if field.types[0] != GGUFValueType.ARRAY:
            yield key, field.contents()
        elif not key.startswith(("tokenizer.", "general.")):
            yield f"{key} (as a list)", int(field.parts[-1][0])


def _ends(said: dict[str, Any]) -> int | list[int] | None:
    """Ids that end a turn; several where the file names an end of turn beside the end of text."""
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


def _llama3_rope(config: Any, factors: ReaderTensor, path: str | Path) -> dict[str, Any]:
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
    plain = config.rope_parameters["rope_theta"] ** -(
        torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    )
    config.rope_parameters = rope
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if divisors.shape != plain.shape or not torch.allclose(plain / divisors, scaled, rtol=1e-4):
        raise ConfigError(f"{path} scales positions otherwise than Llama 3, which is not supported")
    return rope


def _unpack(tensor: ReaderTensor, config: Any, path: str | Path) -> torch.Tensor:
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
