"""Weights in 16, 8 or 4 bits for CPUs, packed for the libraries that torch multiplies with.

A pass over a few tokens takes as long as its weights take to be read. On a CPU with instructions
for bfloat16, oneDNN's packed form is read about twice as fast as torch's own, and costs hardly more
for 16 tokens than for one. On other CPUs we use FBGEMM, which reads a weight once for up to six
tokens. Activations are float32 there, because bfloat16 is slower without such instructions.
"""

from __future__ import annotations

import warnings
from typing import Any, Final, Literal

import torch
from torch import Tensor

from workers.model import four_bits

Packing = Literal["bfloat16", "half", "int8", "int4", "int4+bfloat16"]
FOUR_BITS: Final[tuple[Packing, ...]] = ("int4", "int4+bfloat16")
NARROW: Final = 4  # tokens up to which the product in 4 bits is faster than the one in 16
WEIGHT_STEPS: Final = 127  # to either side of zero
_WIDTH: Final = 16  # tokens for which oneDNN lays weights out; other numbers are served as well
INPUT_STEPS: Final = 63  # 7 bits: with 8, the kernel's 16-bit sums of two products overflow on AVX2
_LIBRARY = "fbgemm"
_TO_WHOLE: Final = 1.5 * 2**23
"""Added to a float32 and taken away again it leaves the nearest whole number. `Tensor.round` wakes
another thread for more than 2,048 numbers, which takes longer than the product."""


class PackedLinear:
    """A packed linear layer.

    Inputs and outputs are of type `computation(packing)`.
    `half`: the weight in float16, which represents a bfloat16 of a weight's size exactly.
    `int8`: each row of the weight in whole numbers, scaled by its largest entry. An input is split
    into a coarse vector and its remainder, because models have entries a hundred times as large as
    the others: together they have 14 bits. This doubles the rows of a product that waits for its
    weights anyway. Sums of whole numbers are exact, so a token's output depends on nothing else in
    the pass.
    `int4`: see `four_bits`; a weight whose shape its product does not take has 8 bits.
    `int4+bfloat16`: a second copy of the same weights, in 16 bits, for more than `NARROW` tokens.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packing: Packing) -> None:
        self.outputs, self.inputs = weight.shape
        if packing in FOUR_BITS and not four_bits.fits(self.inputs, self.outputs):
            packing = "int8"
        self.packing = packing
        dtype = computation(packing)
        self.bias = None if bias is None else bias.to(dtype)
        self._grid = self._wide = None
        if packing in FOUR_BITS:
            whole, self._grid = four_bits.quantize(weight)
            self._packed = four_bits.pack(whole)
            if packing == "int4+bfloat16":
                self._wide_type = torch.bfloat16 if computes_in_bfloat16() else torch.float32
                self._wide = _pack_16(four_bits.expand(whole, self._grid), self._wide_type)
        elif packing == "int8":
            self._packed = _pack_8(weight)
        else:
            self._packed = _pack_16(weight, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, inputs] to [tokens, outputs]."""
        if x.numel() == 0:  # a pass of which no logits are wanted
            return x.new_empty(0, self.outputs)
        if self.packing == "bfloat16":
            return _product_16(x, self._packed, self.bias)
        if self.packing == "half":
            product = _product_16(x, self._packed)
        else:
            product = self._int8(x) if self.packing == "int8" else self._int4(x)
            product = product.to(x.dtype)
        return product if self.bias is None else product.add_(self.bias)

    def _int8(self, rows: Tensor) -> Tensor:
        # Every operation counts: around the product of one token they take as long as it does.
        step = rows.abs().amax(-1, keepdim=True).mul_(1 / INPUT_STEPS).clamp_(min=1e-30)
        scaled = rows / step
        coarse = scaled.add(_TO_WHOLE).sub_(_TO_WHOLE)
        fine = scaled.sub_(coarse).mul_(2 * INPUT_STEPS)  # rounded by the operation
        products = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            torch.cat((coarse, fine)), 1.0, INPUT_STEPS + 1, self._packed
        )
        first, second = products[: len(rows)], products[len(rows) :]
        product: Tensor = first.add_(second, alpha=0.5 / INPUT_STEPS).mul_(step)
        return product

    def _int4(self, rows: Tensor) -> Tensor:
        if self._wide is not None and len(rows) > NARROW:
            return _product_16(rows.to(self._wide_type), self._wide)
        assert self._grid is not None
        return four_bits.multiply(rows.bfloat16(), self._packed, self._grid)


def can_pack() -> bool:
    return _LIBRARY in torch.backends.quantized.supported_engines


def computation(packing: Packing) -> torch.dtype:
    """The type of norms, activations and cache beside weights that are packed so."""
    return torch.bfloat16 if packing == "bfloat16" else torch.float32


def computes_in_bfloat16() -> bool:
    """Whether this CPU has instructions for products in bfloat16, and torch a library for them."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack_16(weight: Tensor, dtype: torch.dtype) -> Any:
    """For inputs of that type: in bfloat16 for oneDNN, or in float16 for FBGEMM."""
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), _WIDTH)
    return _prepack("linear_prepack_fp16", weight.float())


def _product_16(x: Tensor, packed: Any, bias: Tensor | None = None) -> Tensor:
    product: Tensor
    if x.dtype == torch.bfloat16:
        product = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    else:
        product = torch.ops.quantized.linear_dynamic_fp16(x, packed)
    return product


def _pack_8(weight: Tensor) -> Any:
    scales = (weight.abs().amax(1).double() / WEIGHT_STEPS).clamp(min=1e-30)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    per_step = scales.float().reciprocal()[:, None]
    steps = torch.empty(weight.shape, dtype=torch.int8)
    for block in four_bits.blocks(weight):
        # As `torch.quantize_per_channel` rounds, in a sixth of its time.
        steps[block] = weight[block].float().mul(per_step[block]).round_()
    with warnings.catch_warnings(action="ignore"):  # later versions of torch drop these tensors
        whole = torch._make_per_channel_quantized_tensor(steps, scales, zeros, 0)
    return _prepack("linear_prepack", whole)


def _prepack(operation: str, weight: Tensor) -> Any:
    """The form that a product of `torch.ops.quantized` takes; which one is a global setting."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _LIBRARY
    try:
        return getattr(torch.ops.quantized, operation)(weight, None)
    finally:
        torch.backends.quantized.engine = before
