"""Muon on the matrices, AdamW on the rest."""

from __future__ import annotations

import math

import torch
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
    """Muon on the matrices, AdamW on the rest."""

    def __init__(self, model: Llama) -> None:
        self.model = model
        self.momentum = torch.zeros_like(model.flat[: model.matrices])
        self.rest = model.flat[model.matrices :]
        self.adam = torch.optim.AdamW(
            [self.rest], lr=model.recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, gradient: Tensor, scale: float) -> None:
        """Update by the gradient, (flat,). `scale` multiplies both learning rates."""
        model, r = self.model, self.model.recipe
        gradient *= (r.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
        matrices, self.rest.grad = gradient.split((model.matrices, len(self.rest)))
        self.adam.param_groups[0]["lr"] = r.adam_lr * scale
        self.adam.step()
        self.momentum.lerp_(matrices, 0.05)
        nesterov = matrices.lerp(self.momentum, 0.95)
        model.flat[: model.matrices] *= 1 - r.muon_lr * scale * r.weight_decay
        stacks = (model.attention, model.mlp)
        for stack, part in zip(stacks, nesterov.split([s.numel() for s in stacks]), strict=True):
            shape = stack.flatten(0, 1).shape
            lr = r.muon_lr * scale * 0.2 * math.sqrt(max(shape[1:]))
            stack.view(shape).add_(orthogonal(part.view(shape)), alpha=-lr)
        model.refresh()
