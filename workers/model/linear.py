"""How a weight lies in memory and is multiplied.

The weights are those of transformers' modules: fused ones become one tensor, and the modules' own
parameters views of it (strided, to be made contiguous before they are saved).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workers.model.packed import PackedLinear, PackedPart, whole_of


class FusedLinear:
    """Linear layers of transformers with the same input, as one matrix product.

    `parts` are all layers of that input, in the order in which `pack` takes them.
    """

    def __init__(self, *parts: nn.Linear | PackedLinear | PackedPart) -> None:
        self.packed = whole_of(parts[0])
        if self.packed is None:
            self.weight = fuse(parts, "weight").t()
            biased = getattr(parts[0], "bias", None) is not None
            self.bias: Tensor | None = fuse(parts, "bias") if biased else None

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, inputs] to [tokens, outputs], the outputs of the parts concatenated."""
        if self.packed is not None:
            return self.packed(x)  # type: ignore[no-any-return]
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, stream: Tensor, x: Tensor, scale: float = 1.0) -> Tensor:
        """`scale` times the same, added to a residual stream [tokens, outputs]."""
        if self.packed is not None:
            return torch.add(stream, self.packed(x), alpha=scale)
        stream = torch.addmm(stream, x, self.weight, alpha=scale)
        return stream if self.bias is None else torch.add(stream, self.bias, alpha=scale)


def fuse(parts: Sequence[nn.Module], name: str) -> Tensor:
    """Concatenate the parts' parameters of that name; they become views of the result.

    On a CPU in full precision a weight is laid out by inputs: a product with one vector then reads
    memory from end to end, in four fifths of the time where the weights exceed the second-level
    cache. The kernels for half precision are slower with that layout.
    """
    parameters = [getattr(part, name).detach() for part in parts]
    fused = _fused_before(parameters)
    if fused is None:
        fused = torch.cat(parameters) if len(parameters) > 1 else parameters[0]
        if fused.dim() == 2 and full_precision_cpu(fused):
            fused = fused.t().contiguous().t()
        for part, view in zip(parts, fused.split([*map(len, parameters)]), strict=True):
            setattr(part, name, nn.Parameter(view, requires_grad=False))
    return fused


def full_precision_cpu(weight: Tensor) -> bool:
    """Whether it lies on a CPU in full precision, for which torch's kernels are not the fastest."""
    return weight.device.type == "cpu" and weight.dtype.itemsize >= 4


def _fused_before(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor that these parts are views of, if they were fused before (for another target)."""
    first, step = parts[0], parts[0].stride(0)
    size = sum(map(len, parts))
    if first.dim() == 2 and full_precision_cpu(first) and first.stride() != (1, size):
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
