"""An early-exit head: one attention layer between a shallow layer and the target's own head.

The adapter of Kangaroo (Liu et al. 2404.18911, section 3): RMSNorm, attention, the residual
connection, and a last RMSNorm before the target's language-model head, which it shares. The
paper's has no feed-forward part; in a small model, where launches cost more than arithmetic, it
pays. The adapter has the target's attention heads and positions, so its keys and values lie in the
target's cache as one more layer. `deploy/lab/pair/kangaroo.py` trains it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import silu

from workers.model.cache import KVCache
from workers.model.config import ModelConfig
from workers.model.families import AttentionKind
from workers.model.layer import Attention, FeedForward, Heads, Residual, RMSNorm
from workers.model.linear import Linear
from workers.model.network import Network
from workers.model.placement import View

WEIGHTS, CONFIG = "adapter.safetensors", "adapter.json"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """The layer whose input the adapter takes, and its sizes; `feed_forward` 0: no such part."""

    exit_layer: int
    width: int
    heads: int
    key_heads: int
    head_size: int
    feed_forward: int = 0

    @classmethod
    def of(cls, config: ModelConfig, exit_layer: int, feed_forward: int = 0) -> AdapterShape:
        """The shape for a model of that config; ValueError if an adapter cannot serve it."""
        config.check_plain("an early exit")
        layers = config.num_hidden_layers
        if not 1 <= exit_layer < layers:
            raise ValueError(f"exit_layer must be from 1 to {layers - 1}, not {exit_layer}")
        if type(feed_forward) is not int or feed_forward < 0:
            raise ValueError(f"feed_forward must be a width or 0, not {feed_forward!r}")
        heads = config.num_attention_heads
        key_heads, size = config.num_key_value_heads, config.head_dim
        return cls(exit_layer, config.hidden_size, heads, key_heads, size, feed_forward)


class Adapter(nn.Module):
    """The weights, from the residual stream before a layer to the input of the target's head."""

    def __init__(self, shape: AdapterShape, epsilon: float) -> None:
        super().__init__()
        self.shape, self.epsilon = shape, epsilon
        inner, outer = shape.heads * shape.head_size, shape.key_heads * shape.head_size
        self.before = nn.RMSNorm(shape.width, epsilon)
        self.query = nn.Linear(shape.width, inner, bias=False)
        self.key = nn.Linear(shape.width, outer, bias=False)
        self.value = nn.Linear(shape.width, outer, bias=False)
        self.out = nn.Linear(inner, shape.width, bias=False)
        if shape.feed_forward:
            self.between = nn.RMSNorm(shape.width, epsilon)
            self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
            self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
            self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)
        self.after = nn.RMSNorm(shape.width, epsilon)

    def equals(self, other: Adapter) -> bool:
        mine, theirs = self.state_dict(), other.state_dict()
        return self.shape == other.shape and all(torch.equal(mine[k], theirs[k]) for k in mine)

    @classmethod
    def load(cls, folder: Path, model: Network, exit_layer: int | None = None) -> Self:
        """The folder's adapter for a model, in its type and on its device.

        Raises:
            ValueError: there is none, it cannot be read, or it fits another model or layer.
        """
        if not (folder / CONFIG).is_file():
            raise ValueError(
                f"there is no adapter in {folder}: `baton lab train kangaroo` makes the embedded "
                "model's, `adapter` names another folder"
            )
        what = f"the adapter in {folder}"
        try:
            shape = AdapterShape(**json.loads((folder / CONFIG).read_text())["shape"])
            state = load_file(folder / WEIGHTS)
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise ValueError(f"cannot read {what}: {error}") from error
        layer = shape.exit_layer
        if exit_layer not in (None, layer):
            raise ValueError(f"{what} was trained for exit_layer {layer}, not {exit_layer}")
        fitting = AdapterShape.of(model.config, layer, shape.feed_forward)
        if shape != fitting:
            raise ValueError(f"{what} is {shape}, the model needs {fitting}")
        adapter = cls(shape, model.config.rms_norm_eps)
        try:
            adapter.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"cannot read {what}: {error}") from error
        return adapter.to(model.embedding.device, model.dtype).requires_grad_(False)


class EarlyExitHead:
    """An adapter after one of a target's layers; `cache_layer` is its own."""

    def __init__(self, adapter: Adapter, cache_layer: int) -> None:
        shape, epsilon = adapter.shape, adapter.epsilon
        self.adapter, self.layer = adapter, shape.exit_layer
        self.attention = Attention(
            RMSNorm(adapter.before.weight, epsilon),
            _product(adapter.query, adapter.key, adapter.value),
            Residual(_product(adapter.out)),
            Heads(shape.heads, shape.key_heads, shape.head_size, shape.head_size**-0.5),
            cache_layer,
        )
        self.kind = AttentionKind()  # that of the target's layers
        self.feed_forward: FeedForward | None = None
        if shape.feed_forward:
            self.feed_forward = FeedForward(
                RMSNorm(adapter.between.weight, epsilon),
                _product(adapter.gate, adapter.up),
                Residual(_product(adapter.down)),
                silu,
            )
        self.after = RMSNorm(adapter.after.weight, epsilon)

    def __call__(self, x: Tensor, views: Mapping[AttentionKind, View], cache: KVCache) -> Tensor:
        """The residual stream [rows, n, width] to the head's input; `views` are the pass's."""
        stream = self.attention(x, views[self.kind], cache)
        if self.feed_forward is not None:
            stream = self.feed_forward(stream)
        return self.after(stream).view(x.shape)

    def update_cache(self, x: Tensor, views: Mapping[AttentionKind, View], cache: KVCache) -> None:
        """Cache the keys and values of x [rows, n, width] alone."""
        self.attention.update_cache(x, views[self.kind], cache)


def _product(*layers: nn.Linear) -> Linear:
    """Return the layers as one matrix product; their weights become views of its weight."""
    product = Linear([layer.weight for layer in layers])
    parts = product.weight.t().split([layer.out_features for layer in layers])
    for layer, part in zip(layers, parts, strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)
    return product
