"""Packed weights: what they compute, and that a token's output is its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.workers.conftest import make_model
from workers.model.linear import FusedLinear
from workers.model.packed import PackedLinear, Packing, pack, parameter_count
from workers.model.target import Target
from workers.model.tree import Tree

PACKINGS = pytest.mark.parametrize("packing", ["half", "int8"])


def layer(inputs: int = 96, outputs: int = 40, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(5)
    linear = nn.Linear(inputs, outputs, bias=bias)
    linear.weight.data = (0.03 * torch.randn(outputs, inputs)).bfloat16().float()
    return linear.requires_grad_(False)


@PACKINGS
@pytest.mark.parametrize("tokens", [1, 2, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layer(packing: Packing, tokens: int, bias: bool) -> None:
    linear = layer(bias=bias)
    x = torch.randn(tokens, 96) * torch.logspace(-4, 4, tokens)[:, None]
    x[:, 3] *= 20  # an outlier, as real models have them
    wanted = linear(x)
    found = PackedLinear(linear, packing)(x)
    assert found.dtype == torch.float32
    error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(error.max()) < {"half": 2e-6, "int8": 0.02}[packing]


@PACKINGS
def test_a_tokens_output_depends_on_no_neighbour(packing: Packing) -> None:
    """Also where the neighbour is a million times as large: texts stay equal at any width."""
    packed, x = PackedLinear(layer(), packing), torch.randn(9, 96)
    x[4] *= 1e6
    together = packed(x)
    for i in range(9):
        alone = packed(x[i : i + 1])
        if packing == "int8":  # sums of whole numbers are exact in any order
            assert torch.equal(alone[0], together[i])
        torch.testing.assert_close(
            alone[0], together[i], rtol=1e-5, atol=1e-5 * float(x[i].abs().max())
        )


@PACKINGS
def test_zeros_give_the_bias_and_nans_stay(packing: Packing) -> None:
    linear = layer()
    packed = PackedLinear(linear, packing)
    assert torch.equal(packed(torch.zeros(2, 96))[1], linear.bias)
    spoilt = torch.randn(2, 96)
    spoilt[0, 5] = torch.nan
    found = packed(spoilt)
    assert found[0].isnan().all()
    assert not found[1].isnan().any()


@PACKINGS
def test_fused_layers_are_their_parts(packing: Packing) -> None:
    parts = [PackedLinear(layer(outputs=size), packing) for size in (8, 24)]
    fused, x, stream = FusedLinear(*parts), torch.randn(3, 96), torch.randn(3, 32)
    assert torch.equal(fused(x), torch.cat([part(x) for part in parts], -1))
    assert torch.equal(fused.add_to(stream, x), fused(x) + stream)


@PACKINGS
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_model_says_what_it_said(packing: Packing, family: str) -> None:
    model: Any = make_model(family).bfloat16()
    known = Target(copy.deepcopy(model).float(), slots=1, max_len=64)
    size = parameter_count(model)
    pack(model, packing)
    assert parameter_count(model) == size
    targets = [Target(model, slots=2, max_len=64) for _ in range(2)]
    assert {target.dtype for target in targets} == {torch.float32}
    ids = [5, 9, 2, 7, 11, 3]
    with torch.inference_mode():
        wanted = known.extend(0, ids, num_logits=6).logits
        whole = targets[0].extend(0, ids, num_logits=6).logits
        targets[1].extend(1, ids[:3], num_logits=0)
        rest = targets[1].forward([1], [Tree.chain(ids[3:])]).logits
        stock = model(torch.tensor([ids])).logits
    spread = float(wanted.std())
    limit = {"half": 1e-4, "int8": 0.1}[packing] * spread
    torch.testing.assert_close(whole, wanted, rtol=0, atol=limit)
    torch.testing.assert_close(rest, whole[:, 3:], rtol=0, atol=limit)
    torch.testing.assert_close(stock.float(), wanted, rtol=0, atol=0.1 * spread)
