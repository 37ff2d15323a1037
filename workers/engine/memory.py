"""What a model takes of its device's memory, and the share of a GPU that one worker keeps to.

Ray does not enforce shares of a GPU, so each worker caps its own process first (`reserve`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.errors import ConfigError
from workers.model.config import ModelConfig
from workers.model.placement import CHUNK
from workers.model.shapes import parameter_count, shapes
from workers.model.target import SPARE


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of a model's weights, of its cache, and of what its largest pass holds beside them."""

    weights: int
    cache: int
    passes: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.passes


def memory_need(config: ModelConfig, *, dtype: torch.dtype, slots: int, max_len: int) -> MemoryNeed:
    """What a checkpoint takes with `slots` cached sequences of `max_len` tokens.

    A pass over `CHUNK` tokens is counted by its logits, once as they are and twice in full
    precision. The CUDA context (about half a GB) and a draft model come on top.
    """
    weights = parameter_count(shapes(config)) * dtype.itemsize
    per_token = token_bytes(config, dtype)
    passes = CHUNK * config.vocab_size * (dtype.itemsize + 8)
    return MemoryNeed(weights, slots * (max_len + SPARE) * per_token, passes)


def fitting_len(config: ModelConfig, *, dtype: torch.dtype, slots: int, size: int) -> int:
    """The longest text of which `slots` fit a cache of `size` bytes."""
    return max(0, size // (slots * token_bytes(config, dtype)) - SPARE)


def token_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token, over all layers."""
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return values * dtype.itemsize


def reserve(need: MemoryNeed, *, device: str, share: float) -> None:
    """Cap this process at `share` of the GPU; raise ConfigError if `need` does not fit it."""
    # Torch caps the memory of a numbered device alone.
    numbered = device if ":" in device else f"{device}:{torch.cuda.current_device()}"
    place = torch.device(numbered)
    torch.cuda.set_per_process_memory_fraction(share, place)
    free, total = torch.cuda.mem_get_info(place)
    reason = shortage(need, share=share, total=total, free=free)
    if reason is not None:
        raise ConfigError(f"{torch.cuda.get_device_name(place)}: {reason}")


def shortage(need: MemoryNeed, *, share: float, total: int, free: int) -> str | None:
    """Why it does not fit `share` of `total` bytes, `free` of them free; None if it does."""
    sizes = f"weights {_gb(need.weights)} + cache {_gb(need.cache)} + passes {_gb(need.passes)}"
    sizes += f" = {_gb(need.total)}"
    limit = int(share * total)
    if need.total > limit:
        return (
            f"{sizes} do not fit the share {share:g} of {_gb(total)}, which is {_gb(limit)}: "
            "raise gpu, or lower rows or max_len"
        )
    if need.total > free:
        return f"{sizes} are within the share {share:g}, but only {_gb(free)} are free"
    return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
