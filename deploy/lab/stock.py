"""A checkpoint as transformers' own model, to compare with, to train on and to save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.gguf_checkpoint import GgufWeights, read_config
from workers.model.shapes import EMBEDDING, HEAD, shapes
from workers.text.gguf_tokenizer import is_gguf


def stock(path: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder, a Hugging Face id or a GGUF file, on the CPU in eval mode."""
    if not is_gguf(path):
        loaded = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
        )
        return loaded.eval().requires_grad_(False)
    config = read_config(path)
    weights = GgufWeights(path, config)
    state = {name: weights.read(name) for name in shapes(config)}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config.written()), dtype=dtype, attn_implementation="sdpa"
    )
    model.load_state_dict({HEAD: state[EMBEDDING], **state})
    model.generation_config.eos_token_id = config.eos_token_id
    return model.eval().requires_grad_(False)
