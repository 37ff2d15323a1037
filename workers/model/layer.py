"""The decoder layer of Llama, Qwen2 and Qwen3 in as few operations as it takes.

A pass over one token is all launches: transformers' layer makes about fifty of them, and on a CPU
with a small model, as on a GPU with a large one, they cost more than the arithmetic. Here the
projections that read the same states are one product, queries and keys are rotated together, what
returns to the residual stream is added in the same kernel, and a norm is few. The weights are the
stock layer's: what is joined becomes one tensor, of which the stock layer's own parameters are
views from then on (strided ones, to be made contiguous by who writes them to a file).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.model.cache import Cache

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines [1 or rows, 1, n, head size]; the first half of the sines is negated."""


class Layer:
    """One layer; `stock` is transformers' module, on its device and in its type.

    Half precision rounds where the operations end, so not everywhere where the stock layer does.
    """

    def __init__(self, stock: Any) -> None:
        mlp = stock.mlp
        self.attention = Attention.of(stock)
        self.feed_forward = FeedForward(
            Norm.of(stock.post_attention_layernorm),
            Projection(mlp.gate_proj, mlp.up_proj),
            Projection(mlp.down_proj),
            mlp.act_fn.forward,  # past the hooks of a module
        )

    def __call__(self, x: Tensor, rotary: Rotary, mask: Tensor | None, cache: Cache) -> Tensor:
        """[rows, n, width] of the residual stream to the same behind this layer.

        `mask` is additive [rows or 1, 1, n, cached], None says causal; the cache is aimed.
        """
        return self.feed_forward(self.attention(x, rotary, mask, cache)).view(x.shape)


class Attention:
    """The first half of a layer: a norm, attention, and the residual around both."""

    def __init__(
        self,
        before: Norm,
        project: Projection,
        out: Projection,
        *,
        heads: int,
        key_heads: int,
        size: int,
        scale: float,
        place: int,
        by_head: Norm | None = None,
    ) -> None:
        self.before, self.project, self.out = before, project, out
        self.heads, self.turning = heads, heads + key_heads
        self.size, self.scale = size, scale
        self.place = place  # of its keys and values, among the cache's layers
        self.by_head = by_head  # of every query and key

    @classmethod
    def of(cls, stock: Any) -> Attention:
        """That of a layer of transformers."""
        inner = stock.self_attn
        heads, key_heads = inner.config.num_attention_heads, inner.config.num_key_value_heads
        by_head = None
        if hasattr(inner, "q_norm"):  # Qwen3
            query, key = inner.q_norm, inner.k_norm
            weights = [query.weight] * heads + [key.weight] * key_heads
            by_head = Norm(torch.stack(weights)[:, None], query.variance_epsilon)
        return cls(
            Norm.of(stock.input_layernorm),
            Projection(inner.q_proj, inner.k_proj, inner.v_proj),
            Projection(inner.o_proj),
            heads=heads, key_heads=key_heads, size=inner.head_dim, scale=inner.scaling,
            place=inner.layer_idx, by_head=by_head,
        )  # fmt: skip

    def __call__(self, x: Tensor, rotary: Rotary, mask: Tensor | None, cache: Cache) -> Tensor:
        """[rows, n, width] to the stream [rows * n, width] behind it; the rest as a layer's."""
        stream = x.reshape(-1, x.shape[-1])
        queries, keys, values = self._read(stream, x, rotary, cache)
        mixed = attend(queries, keys, values, mask, self.scale)
        return self.out.onto(stream, mixed.transpose(1, 2).reshape(len(stream), -1))

    def note(self, x: Tensor, rotary: Rotary, cache: Cache) -> None:
        """Keep the keys and values of x, from which nobody reads on."""
        self._read(x.reshape(-1, x.shape[-1]), x, rotary, cache)

    def _read(
        self, stream: Tensor, x: Tensor, rotary: Rotary, cache: Cache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and the keys and values that they may look at."""
        rows, n, _ = x.shape
        heads = self.project(self.before(stream)).view(rows, n, -1, self.size).transpose(1, 2)
        turned, values = heads[:, : self.turning], heads[:, self.turning :]
        if self.by_head is not None:
            turned = self.by_head(turned)
        turned = rotate(turned, rotary)
        keys, values = cache.update(turned[:, self.heads :], values, self.place)
        return turned[:, : self.heads], keys, values


class FeedForward:
    """The second half of a layer: a norm, the gated feed-forward part, and the residual."""

    def __init__(
        self,
        before: Norm,
        expand: Projection,
        contract: Projection,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        self.before, self.expand, self.contract = before, expand, contract
        self.activation = activation

    def __call__(self, stream: Tensor) -> Tensor:
        """[places, width] to the same behind it."""
        gate, up = self.expand(self.before(stream)).chunk(2, -1)
        return self.contract.onto(stream, self.activation(gate) * up)


class Norm:
    """An RMSNorm: `weight` [..., width] times what it norms, [..., width]."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight.detach(), epsilon
        self.shape = tuple(weight.shape[-1:])
        # Torch's is one kernel on a GPU and eight on a CPU, where these are four.
        self.by_length = _in_full(weight)
        if self.by_length:
            (width,) = self.shape
            self.scaled = self.weight * width**0.5
            self.floor = self.weight.new_tensor(width * epsilon).sqrt()

    @classmethod
    def of(cls, stock: Any) -> Norm:
        """That of a module of transformers."""
        return cls(stock.weight, stock.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        if self.by_length:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return torch.div(x, torch.hypot(length, self.floor)).mul_(self.scaled)
        if self.weight.dim() == 1:
            return F.rms_norm(x, self.shape, self.weight, self.epsilon)
        return F.rms_norm(x, self.shape, None, self.epsilon) * self.weight


class Projection:
    """One or several linear layers of transformers, which read the same, as one product."""

    def __init__(self, *parts: nn.Linear) -> None:
        self.weight = _joined(parts, "weight").t()
        biased = getattr(parts[0], "bias", None) is not None
        self.bias: Tensor | None = _joined(parts, "bias") if biased else None

    def __call__(self, x: Tensor) -> Tensor:
        """[places, inputs] to [places, outputs], those of the parts one behind the other."""
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        """The same, added to a stream [places, outputs]."""
        stream = torch.addmm(stream, x, self.weight)
        return stream if self.bias is None else stream + self.bias


def half_split(cosines: Tensor, sines: Tensor) -> Rotary:
    """What `rotate` reads, of transformers' tables [1 or rows, n, head size]."""
    left, right = sines.chunk(2, -1)
    return cosines.unsqueeze(1), torch.cat((-left, right), -1).unsqueeze(1)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary positions on [rows, heads, n, size], in the half-split form of Llama and Qwen."""
    cosines, sines = rotary
    left, right = x.chunk(2, -1)
    return torch.addcmul(x * cosines, torch.cat((right, left), -1), sines)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Attention of [rows, heads, n, size] to [rows, key heads, cached, size]; None says causal."""
    rows, heads, n, size = queries.shape
    groups = heads // keys.shape[1]
    if mask is None or groups == 1:
        return F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None and n > 1, scale=scale,
            enable_gqa=groups > 1,
        )  # fmt: skip
    # Under a mask the fused kernels know no groups: the heads of one become its queries.
    folded = queries.reshape(rows, -1, groups * n, size)
    if n > 1:
        mask = mask.repeat(1, 1, groups, 1)
    mixed = F.scaled_dot_product_attention(folded, keys, values, mask, scale=scale)
    return mixed.reshape(rows, heads, n, size)  # a view, where the kernel's layout allows one


def _joined(parts: Sequence[nn.Linear], name: str) -> Tensor:
    """The parameters of that name one behind the other, which become views of the whole.

    Inputs are the rows of a matrix on a CPU in full precision: a product with one vector then reads
    memory from end to end, and takes four fifths of the time where the weights lie beyond the
    second cache. Half precision has kernels that are slower so.
    """
    given = [getattr(part, name).detach() for part in parts]
    whole = _whole(given)
    if whole is None:
        whole = torch.cat(given) if len(given) > 1 else given[0]
        if whole.dim() == 2 and _in_full(whole):
            whole = whole.t().contiguous().t()
        for part, view in zip(parts, whole.split([*map(len, given)]), strict=True):
            setattr(part, name, nn.Parameter(view, requires_grad=False))
    return whole


def _in_full(weight: Tensor) -> bool:
    """On a CPU and in full precision, where torch's own kernels are not the fastest way."""
    return weight.device.type == "cpu" and weight.dtype.itemsize >= 4


def _whole(parts: Sequence[Tensor]) -> Tensor | None:
    """What was joined before, for another target: parts that lie so, in this order."""
    first, step = parts[0], parts[0].stride(0)
    size = sum(map(len, parts))
    if first.dim() == 2 and _in_full(first) and first.stride() != (1, size):
        return None
    at = first.storage_offset()
    for part in parts:
        storage = part.untyped_storage().data_ptr()
        if storage != first.untyped_storage().data_ptr() or part.stride() != first.stride():
            return None
        if part.storage_offset() != at:
            return None
        at += len(part) * step
    return torch.as_strided(first, (size, *first.shape[1:]), first.stride())
