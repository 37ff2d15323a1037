"""The decoder layer of Llama and its kin in as few operations as possible.

In a pass over one token the launches of operations cost more than the arithmetic: transformers'
layer makes about fifty. Here projections with the same input are one matrix product, queries and
keys are rotated together, the residual is added in the kernel of the product, and a norm is four
operations or one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.model.cache import Cached, KVCache
from workers.model.config import ModelConfig
from workers.model.families import AttentionKind
from workers.model.linear import Linear, full_precision_cpu
from workers.model.packed import Packing
from workers.model.placement import Rotary, View
from workers.model.shapes import Read, layer_shapes

_GELU = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "swish": F.silu, "gelu": F.gelu, "relu": F.relu,
}  # fmt: skip
"""By `hidden_act`; all others are names of one function."""


class Layer:
    """One layer, of weights that `read` gives by their names in it. A pass has a view for each
    `kind` of attention.

    In half precision results differ from transformers': fused operations round less often.
    """

    def __init__(
        self, config: ModelConfig, index: int, read: Read, packing: Packing | None = None
    ) -> None:
        family, known = config.family, layer_shapes(config)
        self.kind = config.attention(index)

        def linear(*names: str) -> Linear:
            weights = [read(f"{name}.weight") for name in names]
            biases = [read(f"{name}.bias") for name in names if f"{name}.bias" in known]
            return Linear(weights, biases, packing)

        def norm(name: str) -> RMSNorm:
            return RMSNorm.of(read(f"{name}.weight"), config)

        def residual(name: str, after: str) -> Residual:
            normed = norm(after) if family.post_norms else None
            return Residual(linear(name), config.residual_multiplier, normed)

        # In between, transformers names a norm for its place, which post-norms change.
        before = "pre_feedforward_layernorm" if family.post_norms else "post_attention_layernorm"
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        head_norm = None
        if family.head_norms:
            query, key = norm("self_attn.q_norm"), norm("self_attn.k_norm")
            weights = [query.weight] * heads + [key.weight] * key_heads
            head_norm = RMSNorm(torch.stack(weights)[:, None], query.epsilon)
        self.attention = Attention(
            norm("input_layernorm"),
            linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            residual("self_attn.o_proj", "post_attention_layernorm"),
            Heads(heads, key_heads, config.head_dim, config.attention_scale),
            index,
            head_norm,
        )
        self.feed_forward = FeedForward(
            norm(before),
            linear("mlp.gate_proj", "mlp.up_proj"),
            residual("mlp.down_proj", "post_feedforward_layernorm"),
            _ACTIVATIONS.get(config.hidden_act, _GELU),
        )

    def __call__(
        self,
        x: Tensor,
        views: Mapping[AttentionKind, View],
        cache: KVCache,
        ragged: Ragged | None = None,
    ) -> Tensor:
        """The residual stream [rows, n, width] before this layer to the one after it.

        With `ragged` the stream is [tokens, width], without padding.
        """
        return self.feed_forward(self.attention(x, views[self.kind], cache, ragged)).view(x.shape)


class Ragged(NamedTuple):
    """Tokens of rows of unequal length in one sequence, where products skip the padding.

    `places` [tokens]: where each lies among the rows * n padded ones.
    """

    rows: int
    n: int
    places: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], n: int, device: torch.device) -> Ragged:
        """Make it from rows of these lengths, padded at the end to n."""
        places = [row * n + i for row, length in enumerate(lengths) for i in range(length)]
        return cls(len(lengths), n, torch.tensor(places, device=device))

    def pad(self, x: Tensor) -> Tensor:
        """[tokens, width] to [rows, n, width], with zeros between the rows."""
        padded = x.new_zeros(self.rows * self.n, x.shape[-1]).index_copy_(0, self.places, x)
        return padded.view(self.rows, self.n, -1)

    def unpad(self, x: Tensor) -> Tensor:
        """[rows * n, width] to [tokens, width]."""
        return x.index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class Heads:
    """The numbers of query and key heads, their size, and the scale of their products."""

    queries: int
    keys: int
    size: int
    scale: float


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual connection: `scale` times a part's last product, normed if there is a norm."""

    linear: Linear
    scale: float = 1.0
    norm: RMSNorm | None = None

    def __call__(self, stream: Tensor, x: Tensor) -> Tensor:
        """Add the product of x [tokens, inner] to the stream [tokens, width]."""
        if self.norm is None:
            return self.linear.add_to(stream, x, self.scale)
        return torch.add(stream, self.norm(self.linear(x)), alpha=self.scale)


class Attention:
    """The first half of a layer: norm, attention and the residual connection.

    `cache_layer` holds its keys and values; `head_norm` is the norm of every query and key.
    """

    def __init__(
        self,
        norm: RMSNorm,
        qkv: Linear,
        out: Residual,
        heads: Heads,
        cache_layer: int,
        head_norm: RMSNorm | None = None,
    ) -> None:
        self.norm, self.qkv, self.out = norm, qkv, out
        self.heads, self.rotated = heads.queries, heads.queries + heads.keys
        self.head_size, self.scale = heads.size, heads.scale
        self.cache_layer, self.head_norm = cache_layer, head_norm

    def __call__(
        self, x: Tensor, view: View, cache: KVCache, ragged: Ragged | None = None
    ) -> Tensor:
        """[rows, n, width] to the residual stream [rows * n, width]; else as a layer."""
        rotary, mask = view
        stream = x.reshape(-1, x.shape[-1])
        queries, keys, values = self._project(x, rotary, cache, ragged)
        mixed = attend(queries, keys, values, mask, self.scale).transpose(1, 2)
        mixed = mixed.reshape(queries.shape[0] * queries.shape[2], -1)
        if ragged is not None:
            mixed = ragged.unpad(mixed)
        return self.out(stream, mixed)

    def update_cache(self, x: Tensor, view: View, cache: KVCache) -> None:
        """Cache the keys and values of x without attending."""
        self._project(x, view[0], cache)

    def _project(
        self, x: Tensor, rotary: Rotary | None, cache: KVCache, ragged: Ragged | None = None
    ) -> tuple[Tensor, Cached, Cached]:
        """Queries of x, and all cached keys and values of its rows, those of x included."""
        heads = self.qkv(self.norm(x.reshape(-1, x.shape[-1])))
        heads = heads.view(*x.shape[:-1], -1) if ragged is None else ragged.pad(heads)
        heads = heads.view(*heads.shape[:2], -1, self.head_size).transpose(1, 2)
        rotated, values = heads[:, : self.rotated], heads[:, self.rotated :]
        if self.head_norm is not None:
            rotated = self.head_norm(rotated)
        if rotary is not None:
            rotated = rotate(rotated, rotary)
        cached = cache.update(rotated[:, self.heads :], values, self.cache_layer)
        return rotated[:, : self.heads], *cached


class FeedForward:
    """The second half of a layer: norm, gated feed-forward part and the residual connection."""

    def __init__(
        self,
        norm: RMSNorm,
        gate_up: Linear,
        down: Residual,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        self.norm, self.gate_up, self.down, self.activation = norm, gate_up, down, activation

    def __call__(self, stream: Tensor) -> Tensor:
        """The residual stream [tokens, width] before it to the one after it."""
        gate, up = self.gate_up(self.norm(stream)).chunk(2, -1)
        inner = self.activation(gate) * up
        return self.down(stream, inner)


class RMSNorm:
    """Root-mean-square norm of [..., width], times `weight` [..., width].

    A weight in another type than x makes the whole norm be computed in that type.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight.detach(), epsilon
        self.shape = tuple(weight.shape[-1:])
        # Torch's is one operation on a GPU and eight on a CPU, where these are four.
        self.on_cpu = full_precision_cpu(weight)
        if self.on_cpu:
            (width,) = self.shape
            self.scaled_weight = self.weight * width**0.5
            self.floor = self.weight.new_tensor(width * epsilon).sqrt()

    @classmethod
    def of(cls, weight: Tensor, config: ModelConfig) -> RMSNorm:
        """The norm with a weight as a checkpoint stores it."""
        if offset := config.family.norm_offset:
            # In full precision, as its authors do: the sum has more bits than the weight.
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + offset
        return cls(weight, config.rms_norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype:
            return self(x.to(self.weight.dtype)).to(x.dtype)
        if self.on_cpu:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return torch.div(x, torch.hypot(length, self.floor)).mul_(self.scaled_weight)
        if self.weight.dim() == 1:
            return F.rms_norm(x, self.shape, self.weight, self.epsilon)
        return F.rms_norm(x, self.shape, None, self.epsilon) * self.weight


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary position embedding of [rows, heads, n, size], in Llama's half-split form."""
    cosines, sines = rotary
    left, right = x.chunk(2, -1)
    return torch.addcmul(x * cosines, torch.cat((right, left), -1), sines)


def attend(
    queries: Tensor, keys: Cached, values: Cached, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Attention of [rows, heads, n, size] to [rows, key heads, cached, size]; None: causal.

    Keys and values may also be one tensor a row, each as long as that row's. The mask of n > 1
    tokens is as often repeated as a key has query heads (`placement.View`).
    """
    if not isinstance(keys, Tensor):
        assert mask is not None
        parts = zip(queries.split(1), keys, values, mask.split(1), strict=True)
        each = [attend(q, k, v, seen[..., : k.shape[2]], scale) for q, k, v, seen in parts]
        return torch.cat(each)
    assert isinstance(values, Tensor)
    rows, heads, n, size = queries.shape
    groups = heads // keys.shape[1]
    if groups == 1 or (mask is None and not _is_faster_folded(queries, keys)):
        return F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None and n > 1, scale=scale,
            enable_gqa=groups > 1,
        )  # fmt: skip
    # With a mask the fused kernels support no head groups: a group's heads become its queries.
    folded = queries.reshape(rows, -1, groups * n, size)
    mixed = F.scaled_dot_product_attention(folded, keys, values, mask, scale=scale)
    return mixed.reshape(rows, heads, n, size)  # a view if the kernel's layout allows it


def _is_faster_folded(queries: Tensor, keys: Tensor) -> bool:
    """Whether one token's attention reads each key once so, and not once for each head.

    Measured with torch 2.13 on a CPU: up to ten times as fast in half precision, and up to three
    times in full precision after long texts; a text of some tokens is read sooner by groups.
    """
    is_cpu, half = queries.device.type == "cpu", queries.dtype.itemsize == 2
    return queries.shape[2] == 1 and is_cpu and (half or keys.shape[2] >= 512)
