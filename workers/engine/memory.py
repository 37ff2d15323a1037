"""What a model takes of its device's memory, and the share of a GPU that one worker keeps to.

Ray counts shares of a GPU and does not enforce them: two workers on one GPU keep to theirs because
each caps its own process (`claim`), before it takes any memory.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from orchestrator.errors import ConfigError
from workers.model.target import SPARE


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes for sure: its weights, and the cache, which is allocated once."""

    weights: int
    cache: int

    @property
    def total(self) -> int:
        return self.weights + self.cache


def need(config: Any, *, dtype: torch.dtype, slots: int, max_len: int) -> Need:
    """What a checkpoint takes with `slots` cached sequences of `max_len` tokens.

    Activations, the CUDA context (about half a GB) and a draft model come on top.
    """
    with torch.device("meta"):  # shapes alone: as quick for 70 billion parameters as for none
        network = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
    weights = sum(parameter.numel() for parameter in network.parameters()) * dtype.itemsize
    head_size = getattr(config, "head_dim", None)
    head_size = head_size or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * dtype.itemsize
    return Need(weights, slots * (max_len + SPARE) * token)


def claim(needed: Need, *, device: str, share: float) -> None:
    """Cap this process at `share` of the GPU `device`.

    Raises:
        ConfigError: weights and cache do not fit the share, or what is free of it.
    """
    place = torch.device(device)
    torch.cuda.set_per_process_memory_fraction(share, place)
    free, total = torch.cuda.mem_get_info(place)
    reason = refusal(needed, share=share, total=total, free=free)
    if reason is not None:
        raise ConfigError(f"{torch.cuda.get_device_name(place)}: {reason}")


def refusal(needed: Need, *, share: float, total: int, free: int) -> str | None:
    """Why `needed` does not fit `share` of `total` bytes, `free` of them free; None: it does."""
    told = f"weights {_gb(needed.weights)} + cache {_gb(needed.cache)} = {_gb(needed.total)}"
    limit = int(share * total)
    if needed.total > limit:
        return (
            f"{told} do not fit the share {share:g} of {_gb(total)}, which is {_gb(limit)}: "
            "raise gpu, or lower rows or max_len"
        )
    if needed.total > free:
        return f"{told} are within the share {share:g}, but only {_gb(free)} are free"
    return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
