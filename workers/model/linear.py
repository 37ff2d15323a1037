"""How a weight lies in memory and is multiplied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.model.packed import PackedLinear, Packing


class Linear:
    """Layers with the same input as one matrix product, their outputs concatenated.

    On a CPU in full precision the weight is laid out by inputs: a product with one vector then
    reads memory from end to end, in four fifths of the time if the weights exceed the
    second-level cache. The kernels for half precision are slower with that layout.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor] = (),
        packing: Packing | None = None,
    ) -> None:
        weight = torch.cat([*weights]) if len(weights) > 1 else weights[0]
        self.bias = torch.cat([*biases]) if biases else None
        self.packed = None if packing is None else PackedLinear(weight, self.bias, packing)
        if self.packed is None:
            if full_precision_cpu(weight):
                weight = weight.t().contiguous().t()
            self.weight = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, inputs] to [tokens, outputs]."""
        if self.packed is not None:
            return self.packed(x)
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, stream: Tensor, x: Tensor, scale: float = 1.0) -> Tensor:
        """`scale` times the same, added to a residual stream [tokens, outputs]."""
        if self.packed is not None:
            return torch.add(stream, self.packed(x), alpha=scale)
        stream = torch.addmm(stream, x, self.weight, alpha=scale)
        return stream if self.bias is None else torch.add(stream, self.bias, alpha=scale)


def full_precision_cpu(weight: Tensor) -> bool:
    """Whether it lies on a CPU in full precision, for which torch's kernels are not the fastest."""
    return weight.device.type == "cpu" and weight.dtype.itemsize >= 4
