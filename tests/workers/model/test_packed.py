"""Packed weights: what they compute, and that a token's output is its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.workers.conftest import linears, make_model, network_of
from workers.model import four_bits, packed
from workers.model.linear import Linear
from workers.model.packed import (
    FOUR_BITS,
    NARROW,
    PackedLinear,
    Packing,
    computation,
    computes_in_bfloat16,
)
from workers.model.target import Target
from workers.model.tree import Tree

BFLOAT16 = pytest.mark.skipif(
    not computes_in_bfloat16(), reason="this CPU has no instructions for bfloat16"
)
PACKINGS = pytest.mark.parametrize(
    "packing", [pytest.param("bfloat16", marks=BFLOAT16), "half", "int8", "int4", "int4+bfloat16"]
)
# What half of the last of 8 bits makes of a sum, and of its parts: inputs, weights and output.
ERRORS = {"bfloat16": 0.008, "half": 2e-6, "int8": 0.02, "int4": 0.15, "int4+bfloat16": 0.15}


def given(packing: Packing, x: torch.Tensor) -> torch.Tensor:
    """The input in the type that the packing takes."""
    return x.to(computation(packing))


def layer(inputs: int = 96, outputs: int = 40, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(5)
    linear = nn.Linear(inputs, outputs, bias=bias)
    linear.weight.data = (0.03 * torch.randn(outputs, inputs)).bfloat16().float()
    return linear.requires_grad_(False)


def packed_of(linear: nn.Linear, packing: Packing) -> PackedLinear:
    return PackedLinear(linear.weight, linear.bias, packing)


@PACKINGS
@pytest.mark.parametrize("tokens", [1, 2, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layer(packing: Packing, tokens: int, bias: bool) -> None:
    linear = layer(bias=bias)
    x = torch.randn(tokens, 96) * torch.logspace(-4, 4, tokens)[:, None]
    x[:, 3] *= 20  # an outlier, as real models have them
    x = given(packing, x)
    wanted = linear(x.float())
    found = packed_of(linear, packing)(x)
    assert found.dtype == x.dtype
    error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(error.max()) < ERRORS[packing]


@PACKINGS
def test_a_tokens_output_depends_on_no_neighbour(packing: Packing) -> None:
    """Also where the neighbour is a million times as large: texts stay equal at any width."""
    packed, x = packed_of(layer(outputs=48), packing), given(packing, torch.randn(9, 96))
    x[4] *= 1e6
    rounding = 1e-5 if packing in ("half", "int8") else 0.008
    together = packed(x)
    for i in range(9):
        alone = packed(x[i : i + 1])
        if packing == "int8" or packing == "int4":  # its sums are of one order at any width
            assert torch.equal(alone[0], together[i])
        torch.testing.assert_close(
            alone[0], together[i], rtol=rounding, atol=rounding * float(x[i].abs().max())
        )


@PACKINGS
def test_zeros_give_the_bias_and_nans_stay(packing: Packing) -> None:
    linear = layer()
    packed = packed_of(linear, packing)
    bias = given(packing, linear.bias)
    assert torch.equal(packed(given(packing, torch.zeros(2, 96)))[1], bias)
    spoilt = given(packing, torch.randn(2, 96))
    spoilt[0, 5] = torch.nan
    found = packed(spoilt)
    assert found[0].isnan().all()
    assert not found[1].isnan().any()


@PACKINGS
def test_a_product_is_added_to_a_stream(packing: Packing) -> None:
    linear = layer()
    packed = Linear([linear.weight], [linear.bias], packing)
    x, stream = given(packing, torch.randn(3, 96)), given(packing, torch.randn(3, 40))
    assert torch.equal(packed(x), packed_of(linear, packing)(x))
    assert torch.equal(packed.add_to(stream, x), packed(x) + stream)


def round_weights(model: Any, packing: Packing) -> Any:
    """The model with the weights that 4 bits stand for."""
    for one in model.model.modules() if packing in FOUR_BITS else ():
        if isinstance(one, nn.Linear) and four_bits.fits(one.in_features, one.out_features):
            one.weight.data = four_bits.expand(*four_bits.quantize(one.weight.data))
    return model


@PACKINGS
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_model_says_what_it_said(packing: Packing, family: str) -> None:
    model: Any = make_model(family).bfloat16()
    rounded = round_weights(copy.deepcopy(model), packing).float()
    known = Target(network_of(rounded), slots=1, max_len=64)
    network = network_of(model, packing)
    targets = [Target(network, slots=2, max_len=64) for _ in range(2)]
    assert {target.dtype for target in targets} == {given(packing, torch.zeros(1)).dtype}
    ids = [5, 9, 2, 7, 11, 3]
    with torch.inference_mode():
        wanted = known.prefill(0, ids, num_logits=6).logits
        whole = targets[0].prefill(0, ids, num_logits=6).logits
        targets[1].prefill(1, ids[:3], num_logits=0)
        rest = targets[1].forward([1], [Tree.chain(ids[3:])]).logits
    spread = float(wanted.std())
    limit = 1e-4 * spread if packing == "half" else 0.1 * spread
    torch.testing.assert_close(whole.float(), wanted, rtol=0, atol=limit)
    torch.testing.assert_close(rest, whole[:, 3:], rtol=0, atol=limit)


def test_wide_passes_take_the_copy_of_the_same_weights() -> None:
    """A copy in 16 bits differs by the rounding of bfloat16, not by what 4 bits lose."""
    linear = layer(outputs=48, bias=False)
    narrow, both = packed_of(linear, "int4"), packed_of(linear, "int4+bfloat16")
    x = given("int4", torch.randn(2 * NARROW, 96))
    assert torch.equal(both(x[:NARROW]), narrow(x[:NARROW]))
    wide, wanted = both(x).float(), narrow(x).float()
    assert not torch.equal(wide, wanted)
    assert float((wide - wanted).norm() / wanted.norm()) < 0.008


@pytest.mark.parametrize("packing", FOUR_BITS)
def test_a_head_and_odd_shapes_keep_8_bits(packing: Packing) -> None:
    network = network_of(make_model("llama").bfloat16(), packing)
    *inside, head = [one.packed and one.packed.packing for one in linears(network)]
    assert head == "int8"
    assert packed_of(layer(inputs=80), packing).packing == "int8"
    assert packed_of(layer(outputs=40), packing).packing == "int8"
    assert packing in inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_8_bits_are_those_of_torchs_own_quantization(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    weight = (torch.randn(256, 300) * torch.rand(256, 1) * 3).to(dtype)
    weight[3] = 0
    monkeypatch.setattr(packed, "_prepack", lambda _, whole: whole)
    ours = packed._pack_8(weight)
    scales, zeros = ours.q_per_channel_scales(), ours.q_per_channel_zero_points()
    theirs = torch.quantize_per_channel(weight.float(), scales, zeros, 0, torch.qint8)
    assert torch.equal(ours.int_repr(), theirs.int_repr())
    assert torch.equal(scales[4:], (weight[4:].float().abs().amax(1).double() / 127))
