"""Training documents, and batches of them: token trees padded to a few lengths."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rows are padded to one of these lengths: few shapes, at most ~10 % padding.
LENGTHS = (*range(32, 129, 16), *range(160, 321, 32), *range(384, 1025, 128))

Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class TrainingDocument:
    """One training example: a token tree in sequence order. All fields have the same length.

    Branch 0 is the main chain; token i attends to j iff j <= i and j is on the main chain or on
    i's branch. `positions` are RoPE positions. `targets[i]` is what token i predicts (-100:
    nothing) with loss weight `weights[i]`. `flags[i]` is an auxiliary label: 0, 1, or -1: none.
    """

    tokens: Numbers
    targets: Numbers
    weights: Numbers
    positions: Numbers
    branches: Numbers
    flags: Numbers


@dataclass(slots=True)
class Batch:
    """B rows padded to length T. N positions carry a target, M a flag."""

    count: int  # real tokens
    tokens: Tensor  # (B, T) int64
    positions: Tensor  # (B, T) int64
    bias: Tensor  # (B, 1, T, T) 0 where attention is allowed, else -inf
    at: Tensor  # (N,) int64, into the flattened (B T) positions
    targets: Tensor  # (N,) int64
    weights: Tensor  # (N,) float32
    flag_at: Tensor  # (M,) int64
    flags: Tensor  # (M,) float32


def collate(documents: Sequence[TrainingDocument], length: int) -> Batch:
    """Pad documents to (B, length). A padded position attends causally and has no loss."""
    ids = np.zeros((5, len(documents), length), np.int64)
    tokens, targets, positions, branches, flags = ids
    weights = np.zeros((len(documents), length), np.float32)
    targets[:], flags[:] = -100, -1
    for row, doc in enumerate(documents):
        n = len(doc.tokens)
        ids[:, row, :n] = (doc.tokens, doc.targets, doc.positions, doc.branches, doc.flags)
        weights[row, :n] = doc.weights
    at, flag_at = np.flatnonzero(targets >= 0), np.flatnonzero(flags >= 0)
    key = branches[:, None, :]
    allowed = ((key == 0) | (key == branches[:, :, None])) & np.tri(length, dtype=bool)
    bias = np.where(allowed, np.float32(0), np.float32(-np.inf))[:, None]
    flagged = flags.ravel()[flag_at].astype(np.float32)
    arrays = (tokens, positions, bias, at, targets.ravel()[at], weights.ravel()[at], flag_at)
    tensors = [torch.from_numpy(array) for array in (*arrays, flagged)]
    return Batch(sum(len(doc.tokens) for doc in documents), *tensors)


class Buckets:
    """Queues of documents by padded length, so that a batch holds rows of similar length."""

    def __init__(self, source: Iterator[TrainingDocument], batch_tokens: int) -> None:
        self.source = source
        self.rows = [max(1, batch_tokens // length) for length in LENGTHS]
        self.queues: list[deque[TrainingDocument]] = [deque() for _ in LENGTHS]

    def take(self) -> tuple[list[TrainingDocument], int]:
        """The documents of the fullest queue, and the length that they are padded to.

        As many batches as there are queues are kept, so that one is full. Documents longer than the
        longest batch are skipped.
        """
        while sum(self._fullness()) < len(LENGTHS):
            document = next(one for one in self.source if len(one.tokens) <= LENGTHS[-1])
            self.queues[bisect_left(LENGTHS, len(document.tokens))].append(document)
        fullness = self._fullness()
        fullest = fullness.index(max(fullness))
        return [self.queues[fullest].popleft() for _ in range(self.rows[fullest])], LENGTHS[fullest]

    def _fullness(self) -> list[float]:
        """Batches in each queue."""
        return list(map(operator.truediv, map(len, self.queues), self.rows))
