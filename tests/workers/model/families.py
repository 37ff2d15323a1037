"""Tiny random models of every supported family, as transformers computes them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.model.families import FAMILIES

SIZES = {
    "vocab_size": 97, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
WINDOW = 5


def rope(kind: str, **more: Any) -> dict[str, Any]:
    """`rope_parameters` under which the tiny model's frequencies differ from the default ones."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, **more}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, a key a head": ("llama", {"num_key_value_heads": 4}),
    "llama, one key": ("llama", {"num_key_value_heads": 1}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, linear rope": ("llama", rope("linear")),
    "llama, dynamic rope": ("llama", rope("dynamic")),
    "llama, yarn": ("llama", rope("yarn", original_max_position_embeddings=16)),
    "llama, yarn with scales": ("llama", rope(
        "yarn", original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.5, beta_fast=8,
        truncate=False,
    )),
    "llama, longrope": ("llama", rope(
        "longrope", original_max_position_embeddings=32,
        short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[4.0, 8.0, 16.0, 32.0],
    )),
    "llama 3": ("llama", rope(
        "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    )),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": (
        "qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
    ),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "qwen3, windows": (
        "qwen3", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3, windows": ("smollm3", {
        "no_rope_layers": [1, 0, 1, 1], "use_sliding_window": True, "sliding_window": WINDOW,
        "attention_bias": True, "mlp_bias": True,
    }),
    "granite": ("granite", {
        "embedding_multiplier": 3.5, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
        "logits_scaling": 7.0,
    }),
    "granite, biases": ("granite", {
        "residual_multiplier": 0.3, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True,
    }),
    "gemma 3": ("gemma3_text", {
        "sliding_window": WINDOW, "sliding_window_pattern": 3, "query_pre_attn_scalar": 13,
    }),
    "gemma 3, untied, linear rope": ("gemma3_text", {
        "sliding_window": WINDOW, "sliding_window_pattern": 2, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 500.0,
        "rope_local_base_freq": 20.0, "attention_bias": True,
    }),
}  # fmt: skip
"""Family and what its config says beyond `SIZES`."""


def network(case: str, dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
    """A random model of which no weight is what an initializer leaves (norms of one, no bias)."""
    family, more = CASES[case]
    config = AutoConfig.for_model(family, **deepcopy({**SIZES, **more, **sizes}))
    config.architectures = [FAMILIES[family].architecture]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    return model.requires_grad_(False)


def stock_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of transformers' own forward pass."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).logits[0]  # type: ignore[no-any-return]
