"""Runs a draft model for the methods that use one, with its own cache per slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.speculation.sampling import DRAFT, draw, uniform, warp
from workers.speculation.target import CHUNK, Target
from workers.speculation.tree import Row, Tree

LoadModel = Callable[[str], Any]
"""From the name of a checkpoint to a model with the target's tokenizer, on its device."""


class Drafter:
    """A draft model beside the target, slot for slot.

    Its cache may lag behind the committed tokens (by two after a fully accepted draft, by a
    prompt after a join); whatever is missing is read with the next draft.
    """

    def __init__(self, model: Any, target: Target) -> None:
        self.model = Target(
            model,
            slots=target.cache.slots,
            max_len=target.max_len,
            vocabulary=target.vocabulary,
        )
        self.cache = self.model.cache

    def join(self, row: Row) -> None:
        """Start from what the slot still holds and read the rest of the prompt."""
        held = self.cache.claim(row.slot, row.ids, len(row.ids) - 1)
        missing = row.ids[held:-1]
        for i in range(0, len(missing), CHUNK):
            self.model.read(row.slot, missing[i : i + CHUNK], last=0)

    def chains(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[Tree]:
        """One chain per row: its newest token and `wanted[row]` drafted ones.

        Greedy rows draft the argmax; sampled rows draw under their own sampling and keep the
        laws they drew from.
        """
        lengths = self.cache.lengths
        feed = [row.ids[lengths[row.slot] :] for row in rows]
        chains = [[row.ids[-1]] for row in rows]
        laws: list[list[Tensor]] = [[] for _ in rows]
        slots = [row.slot for row in rows]
        rounds = max(wanted)
        for step in range(rounds):
            logits = self.model.forward(slots, [Tree.chain(tokens) for tokens in feed]).logits
            for slot, tokens in zip(slots, feed, strict=True):
                lengths[slot] += len(tokens)
            ends = torch.tensor([len(tokens) - 1 for tokens in feed], device=logits.device)
            tokens = self._next(rows, logits[torch.arange(len(rows)), ends].float(), step, laws)
            feed = [[token] for token in tokens]
            for chain, token in zip(chains, tokens, strict=True):
                chain.append(token)
        trees = []
        for row, chain, law, n in zip(rows, chains, laws, wanted, strict=True):
            kept = torch.stack(law[:n]) if n and not row.greedy else None
            trees.append(Tree.chain(chain[: n + 1], kept))
        return trees

    def commit(self, row: Row, accepted: int) -> None:
        """`row.ids` now ends with the accepted drafts and one more token: forget the others."""
        lengths = self.cache.lengths
        lengths[row.slot] = min(lengths[row.slot], len(row.ids) - 1)

    @staticmethod
    def _next(
        rows: Sequence[Row], logits: Tensor, step: int, laws: list[list[Tensor]]
    ) -> list[int]:
        """The next drafted token of each row from [rows, vocabulary] logits."""
        tokens: list[int] = logits.argmax(-1).tolist()
        sampled = [i for i, row in enumerate(rows) if not row.greedy]
        if sampled:
            drawn_from = warp(logits[sampled, None], [rows[i].sampling for i in sampled])[:, 0]
            numbers = [uniform(rows[i].seed, len(rows[i].ids) + step, DRAFT) for i in sampled]
            column = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
            for i, law, token in zip(
                sampled, drawn_from, draw(drawn_from, column).tolist(), strict=True
            ):
                laws[i].append(law)
                tokens[i] = token
        return tokens
