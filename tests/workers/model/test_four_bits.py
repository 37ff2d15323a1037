"""Weights in 4 bits: how near they are, and that a product is one by the weights they stand for."""

from __future__ import annotations

import pytest
import torch

from workers.model import four_bits
from workers.model.four_bits import GROUP, expand, fits, multiply, pack, quantize


def weight(outputs: int = 48, inputs: int = 96) -> torch.Tensor:
    torch.manual_seed(3)
    return (0.03 * torch.randn(outputs, inputs)).bfloat16()


def test_a_weight_is_within_half_a_step() -> None:
    given = weight()
    whole, grid = quantize(given)
    assert whole.min() >= 0
    assert whole.max() <= 15
    ranges = given.float().view(48, -1, GROUP).aminmax(dim=-1)
    step = ((ranges.max - ranges.min) / 13).repeat_interleave(GROUP, 1)
    error = (expand(whole, grid).float() - given.float()).abs()
    assert bool((error <= 0.55 * step + 1e-3).all())


@pytest.mark.parametrize("used", [13, 14, 15])
def test_a_weight_that_had_4_bits_is_found_again(used: int) -> None:
    """As one unpacked from a GGUF file; a group need not use all steps of its grid."""
    torch.manual_seed(4)
    numbers = torch.randint(0, used + 1, (16, 2, GROUP))
    numbers[..., 0], numbers[..., 1] = 0, used
    steps, lowest = 0.5 ** torch.arange(2, 4), torch.tensor([-1.0, -0.75])
    given = (lowest[:, None] + numbers * steps[:, None]).view(16, -1)
    assert torch.equal(expand(*quantize(given)).float(), given)


@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_equal_weights_stay_what_they_are(value: float) -> None:
    given = torch.full((16, GROUP), value)
    assert torch.equal(expand(*quantize(given)).float(), given)


def test_weights_are_quantized_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, grid = quantize(weight())
    monkeypatch.setattr(four_bits, "_BLOCK", 3 * GROUP)
    again = quantize(weight())
    assert torch.equal(again[0], whole)
    assert torch.equal(again[1], grid)


@pytest.mark.parametrize("outputs", [16, 48, 64, 112])
def test_a_product_is_one_by_what_the_weight_stands_for(outputs: int) -> None:
    """For every count of tokens and any width of a block of the product."""
    whole, grid = quantize(weight(outputs))
    packed, expanded = pack(whole), expand(whole, grid).double()
    x = torch.randn(9, 96).bfloat16()
    found = multiply(x, packed, grid)
    wanted = x.double() @ expanded.t()
    assert float((found - wanted).norm() / wanted.norm()) < 0.008
    for start in range(9):
        for end in range(start + 1, 10):
            assert torch.equal(multiply(x[start:end], packed, grid), found[start:end])


def test_which_shapes_fit() -> None:
    assert fits(96, 48)
    assert not fits(80, 48)
    assert not fits(96, 40)
