"""Muon on the matrices, AdamW on the rest, shared between processes."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from deploy.lab.pair.llama import Llama


def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """Muon's Newton-Schulz iteration on a batch of matrices (n, a, b), in bfloat16."""
    x = g.bfloat16()
    if x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.mT if g.shape[1] > g.shape[2] else x


class Optimizer:
    """Muon on the matrices, AdamW on the rest. Every rank holds the whole state."""

    def __init__(self, model: Llama, rank: int, world: int) -> None:
        self.model, self.rank, self.world = model, rank, world
        self.momentum = torch.zeros_like(model.flat[: model.matrices])
        self.rest = model.flat[model.matrices :]
        r = model.recipe
        self.adam = torch.optim.AdamW(
            [self.rest], lr=r.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, gradient: Tensor, scale: float) -> None:
        """Update from the global gradient, (flat,). ``scale`` multiplies both learning rates."""
        model, r = self.model, self.model.recipe
        gradient *= (r.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
        matrices, self.rest.grad = gradient.split((model.matrices, len(self.rest)))
        self.adam.param_groups[0]["lr"] = r.adam_lr * scale
        self.adam.step()
        self.momentum.lerp_(matrices, 0.05)
        begin = 0
        model.flat[: model.matrices] *= 1 - r.muon_lr * scale * r.weight_decay
        for stack in (model.attention, model.mlp):
            shape = stack.flatten(0, 1).shape
            span = slice(begin, begin + stack.numel())
            begin = span.stop
            # Each rank orthogonalises its share of the matrices, then sends it to the others.
            update = torch.empty(shape, dtype=torch.bfloat16, device=stack.device)
            cuts = [shape[0] * i // self.world for i in range(self.world + 1)]
            mine = slice(cuts[self.rank], cuts[self.rank + 1])
            nesterov = (
                matrices[span].view(shape)[mine].lerp(self.momentum[span].view(shape)[mine], 0.95)
            )
            update[mine] = orthogonal(nesterov)
            for source in range(self.world if self.world > 1 else 0):
                part = update[cuts[source] : cuts[source + 1]]
                dist.broadcast(part.view(torch.uint8), source)
            lr = r.muon_lr * scale * 0.2 * math.sqrt(max(shape[1:]))
            stack.view(shape).add_(update, alpha=-lr)
        model.refresh()
