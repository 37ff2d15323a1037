"""The loop that trains a drafter on the chains of a frozen target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Module

from deploy.lab.pair.batches import LENGTHS, Buckets, TrainingDocument
from deploy.lab.pair.progress import Progress

Loss = Callable[[Sequence[TrainingDocument], int], Tensor]
"""(documents, padded length) -> scalar loss."""


class FitOptions(Protocol):
    """What the loop needs of a recipe; `batch_tokens` with padding, `clip` of the gradient norm."""

    @property
    def batch_tokens(self) -> int: ...
    @property
    def clip(self) -> float: ...


def fit(
    module: Module,
    optimizers: Sequence[tuple[torch.optim.Optimizer, float]],
    documents: Iterable[TrainingDocument],
    loss_of: Loss,
    options: FitOptions,
    progress: Progress,
    *,
    figures: Callable[[], str],
    save: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """Train until `progress` is over; each optimizer comes with its learning rate at the plateau.

    `figures` is called for each line of the log, `save` for each checkpoint, the last one included.
    """
    buckets = Buckets(iter(documents), options.batch_tokens)
    while not progress.over:
        fullness = buckets.fill()
        bucket = fullness.index(max(fullness))
        batch = buckets.take(bucket)
        loss = loss_of(batch, LENGTHS[bucket])
        for optimizer, _ in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), options.clip)
        scale = progress.advance(sum(len(document.tokens) for document in batch))
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
        if progress.log_due() is not None:
            log(progress.log_line(figures()))
        if progress.checkpoint_due():
            save()
