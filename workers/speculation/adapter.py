"""An early exit: one attention layer through which the target's head reads a shallow layer.

The adapter of Kangaroo (Liu et al. 2404.18911, section 3): RMSNorm, attention, the residual, and
a last RMSNorm in front of the target's own head; no feed-forward part, and the head is not its
own. It has the target's heads and positions, so its keys and values lie in the target's cache as
one more layer and are committed, copied and forgotten with the others.

On disk it is a folder of `adapter.safetensors` and `adapter.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workers.speculation.cache import Cache
from workers.speculation.layer import Rotary, attend, rotate

WEIGHTS, CONFIG = "adapter.safetensors", "adapter.json"


@dataclass(frozen=True, slots=True)
class Shape:
    """Which layer the adapter reads (the residual stream before it), and the target's sizes."""

    exit_layer: int
    width: int
    heads: int
    key_heads: int
    head_size: int

    @classmethod
    def of(cls, config: Any, exit_layer: int) -> Shape:
        """The shape that fits a transformers configuration; ValueError for an impossible exit."""
        layers = config.num_hidden_layers
        if not 1 <= exit_layer < layers:
            raise ValueError(f"exit_layer must be from 1 to {layers - 1}, not {exit_layer}")
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(exit_layer, config.hidden_size, heads, config.num_key_value_heads, head_size)


class Adapter(nn.Module):
    """From the residual stream before a layer to what the target's head reads.

    `place` is the layer of the target's cache that holds its keys and values.
    """

    def __init__(self, shape: Shape, epsilon: float) -> None:
        super().__init__()
        self.shape, self.place = shape, -1
        inner, outer = shape.heads * shape.head_size, shape.key_heads * shape.head_size
        self.before = nn.RMSNorm(shape.width, epsilon)
        self.query = nn.Linear(shape.width, inner, bias=False)
        self.key = nn.Linear(shape.width, outer, bias=False)
        self.value = nn.Linear(shape.width, outer, bias=False)
        self.out = nn.Linear(inner, shape.width, bias=False)
        self.after = nn.RMSNorm(shape.width, epsilon)

    def forward(
        self,
        states: Tensor,
        rotary: Rotary,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[rows, n, width] states to what the head reads, [rows, n, width].

        `mask` is additive, and None says causal; with a cache, aimed at the places of the
        states, they also look at what it holds.
        """
        inner = self.before(states)
        query = rotate(self._heads(self.query(inner)), rotary)
        keys, values = self._keys(inner, rotary, cache)
        mixed = attend(query, keys, values, mask)
        read: Tensor = self.after(states + self.out(mixed.transpose(1, 2).flatten(2)))
        return read

    def note(self, states: Tensor, rotary: Rotary, cache: Cache) -> None:
        """Keep the keys and values of states that nobody drafts from."""
        self._keys(self.before(states), rotary, cache)

    def _keys(self, inner: Tensor, rotary: Rotary, cache: Cache | None) -> tuple[Tensor, Tensor]:
        keys, values = rotate(self._heads(self.key(inner)), rotary), self._heads(self.value(inner))
        return (keys, values) if cache is None else cache.update(keys, values, self.place)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.shape.head_size))
        return heads.transpose(1, 2)

    def equals(self, other: Adapter) -> bool:
        """Whether both say the same of any states."""
        mine, theirs = self.state_dict(), other.state_dict()
        return self.shape == other.shape and all(torch.equal(mine[k], theirs[k]) for k in mine)

    # On disk -----------------------------------------------------------------------------

    def save(self, folder: Path, **notes: Any) -> None:
        """Write the folder, in bfloat16; `notes` are kept beside the shape for whoever looks."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: t.to("cpu", torch.bfloat16).clone() for name, t in self.state_dict().items()}
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        text = json.dumps({"shape": asdict(self.shape), **notes}, indent=2)
        (folder / CONFIG).write_text(text + "\n")

    @classmethod
    def load(cls, folder: Path, model: Any, exit_layer: int | None = None) -> Adapter:
        """The folder's adapter for a transformers model, in its type and on its device.

        Raises:
            ValueError: there is none, it is broken, or it belongs to another model or layer.
        """
        if not (folder / CONFIG).is_file():
            raise ValueError(
                f"there is no adapter in {folder}: `baton train kangaroo` makes the embedded "
                "model's, `adapter` names another folder"
            )
        try:
            shape = Shape(**json.loads((folder / CONFIG).read_text())["shape"])
            state = load_file(folder / WEIGHTS)
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise ValueError(f"cannot read the adapter in {folder}: {error}") from error
        if exit_layer is not None and exit_layer != shape.exit_layer:
            raise ValueError(
                f"the adapter in {folder} was trained for exit_layer {shape.exit_layer}, "
                f"not {exit_layer}"
            )
        fitting = Shape.of(model.config, shape.exit_layer)
        if shape != fitting:
            raise ValueError(f"the adapter in {folder} is {shape}, the model needs {fitting}")
        adapter = cls(shape, model.config.rms_norm_eps)
        try:
            adapter.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"cannot read the adapter in {folder}: {error}") from error
        return adapter.to(model.device, model.dtype).eval().requires_grad_(False)
