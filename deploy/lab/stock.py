"""A checkpoint as transformers' own model, to compare with, to train on and to save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.loading import load_model
from workers.text.gguf_tokenizer import is_gguf


def stock(path: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder, a Hugging Face id or a GGUF file, on the CPU in eval mode."""
    if not is_gguf(path):
        loaded = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
        )
        return loaded.eval().requires_grad_(False)
    network = load_model(str(path), dtype="float32")
    config = AutoConfig.for_model(**network.config.written())
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.load_state_dict(network.state_dict())
    model.generation_config.eos_token_id = network.config.eos_token_id
    return model.eval().requires_grad_(False)
