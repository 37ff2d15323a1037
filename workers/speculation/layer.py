"""The decoder layer of Llama, Qwen2 and Qwen3 in as few operations as it takes.

A pass over one token is all launches: transformers' layer makes about fifty of them, and on a CPU
with a small model, as on a GPU with a large one, they cost more than the arithmetic. Here the
projections that read the same states are one product, queries and keys are rotated together, and a
norm is one kernel. The weights are the stock layer's: what is joined becomes one tensor, of which
the stock layer's own parameters are views from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.speculation.cache import Cache

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines [1 or rows, 1, n, head size]; the first half of the sines is negated."""


class Layer:
    """One layer; `stock` is transformers' module, on its device and in its type.

    Half precision rounds where the operations end, so not everywhere where the stock layer does.
    """

    def __init__(self, stock: Any) -> None:
        attention, mlp = stock.self_attn, stock.mlp
        config = attention.config
        self.index = attention.layer_idx
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, self.scale = attention.head_dim, attention.scaling
        self.before, self.after = Norm(stock.input_layernorm), Norm(stock.post_attention_layernorm)
        self.project = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = attention.o_proj.weight, attention.o_proj.bias
        self.expand = _joined([mlp.gate_proj, mlp.up_proj])
        self.contract = mlp.down_proj.weight, mlp.down_proj.bias
        self.activation = mlp.act_fn
        self.by_head: tuple[Tensor, float] | None = None  # Qwen3 norms every query and key
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm, attention.k_norm
            weights = [query.weight] * self.heads + [key.weight] * self.key_heads
            self.by_head = torch.stack(weights)[:, None].detach(), query.variance_epsilon

    def __call__(self, x: Tensor, rotary: Rotary, mask: Tensor | None, cache: Cache) -> Tensor:
        """[rows, n, width] of the residual stream to the same behind this layer.

        `mask` is additive [rows or 1, 1, n, cached], None says causal; the cache is aimed.
        """
        rows, n, _ = x.shape
        joined = F.linear(self.before(x), *self.project)
        heads = joined.view(rows, n, -1, self.size).transpose(1, 2)
        turning = self.heads + self.key_heads
        turned, values = heads[:, :turning], heads[:, turning:]
        if self.by_head is not None:
            weight, epsilon = self.by_head
            turned = F.rms_norm(turned, (self.size,), None, epsilon) * weight
        turned = rotate(turned, rotary)
        keys, values = cache.update(turned[:, self.heads :], values, self.index)
        mixed = attend(turned[:, : self.heads], keys, values, mask, self.scale)
        x = x + F.linear(mixed.transpose(1, 2).reshape(rows, n, -1), *self.out)
        gate, up = F.linear(self.after(x), *self.expand).chunk(2, -1)
        return x + F.linear(self.activation(gate) * up, *self.contract)


class Norm:
    """An RMSNorm as the one kernel that torch has for it; `stock` is transformers' module."""

    def __init__(self, stock: Any) -> None:
        self.weight, self.epsilon = stock.weight, stock.variance_epsilon
        self.shape = tuple(self.weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight, self.epsilon)


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


def _joined(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one projection instead of several, whose parameters become views of it."""
    weight = _as_one(parts, "weight")
    return weight, None if parts[0].bias is None else _as_one(parts, "bias")


def _as_one(parts: Sequence[nn.Linear], name: str) -> Tensor:
    given = [getattr(part, name).detach() for part in parts]
    if _adjoin(given):  # joined before, for another
        shape = sum(map(len, given)), *given[0].shape[1:]
        return torch.as_strided(given[0], shape, given[0].stride())
    whole = torch.cat(given)
    for part, view in zip(parts, whole.split([*map(len, given)]), strict=True):
        setattr(part, name, nn.Parameter(view, requires_grad=False))
    return whole


def _adjoin(parts: Sequence[Tensor]) -> bool:
    """Whether they lie one behind the other, in this order, in one storage."""
    (storage, *others) = (part.untyped_storage().data_ptr() for part in parts)
    ends = [part.storage_offset() + part.numel() for part in parts]
    return (
        all(other == storage for other in others)
        and all(part.is_contiguous() for part in parts)
        and [part.storage_offset() for part in parts[1:]] == ends[:-1]
    )
