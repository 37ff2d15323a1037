"""The loop that trains a drafter on the chains of a frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from deploy.lab.pair.batches import Batch, Buckets, TrainingDocument, collate
from deploy.lab.pair.progress import Progress, Schedule

Optimizers = Sequence[tuple[torch.optim.Optimizer, float]]
"""Optimizers with their learning rates at the plateau."""


def fit(
    module: Module,
    optimizers: Optimizers,
    documents: Iterator[TrainingDocument],
    loss_of: Callable[[Batch], Tensor],
    schedule: Schedule,
    log: Callable[[str], None],
) -> None:
    """Train to the end of the schedule."""
    buckets, progress = Buckets(documents, schedule.batch_tokens), Progress(schedule, log)
    while progress.share < 1:
        batch = collate(*buckets.take(), torch.float32)
        loss = loss_of(batch)
        for optimizer, _ in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), schedule.clip)
        scale = progress.advance(batch.count)
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
        progress.report(loss.item())
