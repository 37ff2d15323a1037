"""Packed weights: what they compute, and that a token's output is its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.workers.conftest import make_model
from workers.model.linear import FusedLinear
from workers.model.packed import (
    PackedLinear,
    Packing,
    computes_in_bfloat16,
    pack,
    parameter_count,
)
from workers.model.target import Target
from workers.model.tree import Tree

BFLOAT16 = pytest.mark.skipif(
    not computes_in_bfloat16(), reason="this CPU has no instructions for bfloat16"
)
PACKINGS = pytest.mark.parametrize(
    "packing", [pytest.param("bfloat16", marks=BFLOAT16), "half", "int8"]
)
# What half of the last of 8 bits makes of a sum, and of its parts: inputs, weights and output.
ERRORS = {"bfloat16": 0.008, "half": 2e-6, "int8": 0.02}


def given(packing: Packing, x: torch.Tensor) -> torch.Tensor:
    """The input in the type that the packing takes."""
    return x.bfloat16() if packing == "bfloat16" else x


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
    x = given(packing, x)
    wanted = linear(x.float())
    found = PackedLinear(linear, packing)(x)
    assert found.dtype == x.dtype
    error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(error.max()) < ERRORS[packing]


@PACKINGS
def test_a_tokens_output_depends_on_no_neighbour(packing: Packing) -> None:
    """Also where the neighbour is a million times as large: texts stay equal at any width."""
    packed, x = PackedLinear(layer(), packing), given(packing, torch.randn(9, 96))
    x[4] *= 1e6
    rounding = 0.008 if packing == "bfloat16" else 1e-5
    together = packed(x)
    for i in range(9):
        alone = packed(x[i : i + 1])
        if packing == "int8":  # sums of whole numbers are exact in any order
            assert torch.equal(alone[0], together[i])
        torch.testing.assert_close(
            alone[0], together[i], rtol=rounding, atol=rounding * float(x[i].abs().max())
        )


@PACKINGS
def test_zeros_give_the_bias_and_nans_stay(packing: Packing) -> None:
    linear = layer()
    packed = PackedLinear(linear, packing)
    bias = given(packing, linear.bias)
    assert torch.equal(packed(given(packing, torch.zeros(2, 96)))[1], bias)
    spoilt = given(packing, torch.randn(2, 96))
    spoilt[0, 5] = torch.nan
    found = packed(spoilt)
    assert found[0].isnan().all()
    assert not found[1].isnan().any()


@PACKINGS
def test_fused_layers_are_their_parts(packing: Packing) -> None:
    parts = [PackedLinear(layer(outputs=size), packing) for size in (8, 24)]
    x, stream = given(packing, torch.randn(3, 96)), given(packing, torch.randn(3, 32))
    fused = FusedLinear(*parts)
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
    assert {target.dtype for target in targets} == {given(packing, torch.zeros(1)).dtype}
    ids = [5, 9, 2, 7, 11, 3]
    with torch.inference_mode():
        wanted = known.extend(0, ids, num_logits=6).logits
        whole = targets[0].extend(0, ids, num_logits=6).logits
        targets[1].extend(1, ids[:3], num_logits=0)
        rest = targets[1].forward([1], [Tree.chain(ids[3:])]).logits
        stock = model(torch.tensor([ids])).logits
    spread = float(wanted.std())
    limit = {"bfloat16": 0.1, "half": 1e-4, "int8": 0.1}[packing] * spread
    torch.testing.assert_close(whole.float(), wanted, rtol=0, atol=limit)
    torch.testing.assert_close(rest, whole[:, 3:], rtol=0, atol=limit)
    torch.testing.assert_close(stock.float(), wanted, rtol=0, atol=0.1 * spread)
