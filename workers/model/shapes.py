"""The weights of a checkpoint: transformers' names for them, and their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from torch import Tensor

from workers.model.config import ModelConfig

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER = "model.layers.{}."

Read = Callable[[str], Tensor]
"""Gives a weight by its name."""
Shape = tuple[int, ...]


def below(read: Read, prefix: str) -> Read:
    """The weights whose names begin with a prefix, by the rest of their names."""
    return lambda name: read(prefix + name)


def shapes(config: ModelConfig) -> dict[str, Shape]:
    """All weights of a model; a head that is tied to the embedding is none."""
    width = config.hidden_size
    found: dict[str, Shape] = {EMBEDDING: (config.vocab_size, width), NORM: (width,)}
    if not config.tie_word_embeddings:
        found[HEAD] = found[EMBEDDING]
    inside = layer_shapes(config)
    for index in range(config.num_hidden_layers):
        found |= {LAYER.format(index) + name: shape for name, shape in inside.items()}
    return found


def parameter_count(weights: Mapping[str, Shape]) -> int:
    return sum(map(prod, weights.values()))


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The weights of one layer."""
    family, width, inner = config.family, config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    biased = config.attention_bias or family.qkv_biases
    linear = {  # outputs, inputs, and whether there is a bias
        "self_attn.q_proj": (queries, width, biased),
        "self_attn.k_proj": (keys, width, biased),
        "self_attn.v_proj": (keys, width, biased),
        "self_attn.o_proj": (width, queries, config.attention_bias),
        "mlp.gate_proj": (inner, width, config.mlp_bias),
        "mlp.up_proj": (inner, width, config.mlp_bias),
        "mlp.down_proj": (width, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if family.post_norms:
        norms |= {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
    if family.head_norms:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    return {
        **{f"{name}.weight": (outputs, inputs) for name, (outputs, inputs, _) in linear.items()},
        **{f"{name}.bias": (outputs,) for name, (outputs, _, has) in linear.items() if has},
        **{f"{name}.weight": (size,) for name, size in norms.items()},
    }
