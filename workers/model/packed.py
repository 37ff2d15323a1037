"""Weights in 16 or 8 bits for CPUs, packed for FBGEMM, torch's library of products on x86.

A pass over a few tokens takes as long as its weights take to be read, so their size is its time.
Activations are float32, as are norms and attention: without instructions for half precision
everything else is slower. FBGEMM reads a weight once for up to six tokens, where torch's own
products in bfloat16 read it once a token on such a CPU.
"""

from __future__ import annotations

import warnings
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

Packing = Literal["half", "int8"]
WEIGHT_STEPS: Final = 127  # to either side of zero
INPUT_STEPS: Final = 63  # 7 bits: with 8, the kernel's 16-bit sums of two products overflow on AVX2
_LIBRARY = "fbgemm"


class PackedLinear(nn.Module):
    """A linear layer in its packed form; from and to float32 [tokens, ...].

    `half`: the weight in float16, which holds what a bfloat16 of a weight's size says exactly.
    `int8`: each row of the weight in whole numbers, to the size of its largest entry. An input is
    the sum of two such vectors, one for what the other leaves, since models have entries a hundred
    times as large as the others: together 14 bits, at the price of twice as many rows in a
    product that waits for its weights. Sums of whole numbers are exact, so a token's output
    depends on nothing else in the pass.
    """

    bias: Tensor | None

    def __init__(self, linear: nn.Linear, packing: Packing) -> None:
        super().__init__()
        self.packing = packing
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)
        if packing == "half":
            self._packed = _prepack("linear_prepack_fp16", weight)
            return
        scales = (weight.abs().amax(1).double() / WEIGHT_STEPS).clamp(min=1e-30)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings(action="ignore"):  # of a later torch without these tensors
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = _prepack("linear_prepack", whole)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        if x.numel() == 0:  # a pass of which no logits are wanted
            return x.new_empty(*x.shape[:-1], self.out_features)
        product = self._half(x) if self.packing == "half" else self._int8(x)
        return product if self.bias is None else product.add_(self.bias)

    def _half(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return product

    def _int8(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True).clamp_(min=1e-30)
        scaled = rows * (INPUT_STEPS / largest)
        coarse = scaled.round()
        fine = scaled.sub_(coarse).mul_(2 * INPUT_STEPS)  # rounded by the operation
        products = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            torch.cat((coarse, fine)), 1.0, INPUT_STEPS + 1, self._packed
        )
        first, second = products.split(len(rows))
        product: Tensor = first.add_(second, alpha=0.5 / INPUT_STEPS).mul_(largest / INPUT_STEPS)
        return product.view(*x.shape[:-1], self.out_features)


def pack(network: Any, packing: Packing) -> None:
    """Pack the linear layers of a transformers model on the CPU, in place; norms become float32.

    The embedding stays as it is. Each weight is given up as soon as it is packed.
    """
    for module in [*network.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child, packing))
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data = parameter.data.float()


def can_pack() -> bool:
    """Whether this machine has FBGEMM."""
    return _LIBRARY in torch.backends.quantized.supported_engines


def computes_in_half(device: str) -> bool:
    """Whether products in bfloat16 have instructions of their own there."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def parameter_count(network: nn.Module) -> int:
    """Parameters of a network, those in packed layers included."""
    packed = (one for one in network.modules() if isinstance(one, PackedLinear))
    weights = sum(one.in_features * one.out_features for one in packed)
    return weights + sum(parameter.numel() for parameter in network.parameters())


def _prepack(operation: str, weight: Tensor) -> Any:
    """The form that a product of `torch.ops.quantized` takes; which one is a global setting."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _LIBRARY
    try:
        return getattr(torch.ops.quantized, operation)(weight, None)
    finally:
        torch.backends.quantized.engine = before
