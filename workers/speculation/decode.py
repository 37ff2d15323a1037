"""The token loop: draft, score in one target pass, verify, commit.

`Decoder.step` is one round for the rows of one method; the engine runs it once for each method
group, and calls `join` (or `add`) and `leave` between iterations (continuous batching). A row
belongs to one method. In exact arithmetic its tokens depend neither on its neighbours nor on their
methods; half precision rounds by the shape of a batch, so there two tokens that are almost tied may
change places.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence

import torch

from orchestrator.types import Sampling
from workers.model.acceptance import Acceptance
from workers.model.masking import mask
from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.method import Method


class Decoder:
    """A target, its methods and the live rows; the first method is for rows that name none."""

    def __init__(self, target: Target, methods: Mapping[str, Method]) -> None:
        self.target, self.methods = target, methods
        self.method = next(iter(methods.values()))
        self.acceptance = Acceptance()
        self.rows: list[Row] = []  # by slot, so that neighbours in the cache are one view

    def method_groups(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Group rows by their method, for one `step` a group."""
        groups: dict[Method, list[Row]] = {}
        for row in rows:
            groups.setdefault(self.method_of(row.method), []).append(row)
        return list(groups.values())

    @torch.inference_mode()
    def step(self, rows: list[Row], late: Sequence[Row] = ()) -> list[tuple[Row, Accepted]]:
        """*** One round for the rows of one method. *** Each gains at least one token.

        Those of `late`, to which rows may be added while the method drafts, gain one as well.
        """
        method, cache = self.method_of(rows[0].method), self.target.cache
        plan = method.draft(rows)  # a token tree for each row
        plan = plan.beside([row for row in late if self.method_of(row.method) is method])
        scores = mask(plan, method.score(self.target, plan))  # one target pass over all trees
        accepted = method.verify(plan, scores)  # rejection sampling along each tree
        for row, tree, one in zip(plan.rows, plan.trees, accepted, strict=True):
            if len(tree) > 1:
                one.depth = tree.depth
                one.rejected = [tree.tokens[node] for node in tree.children(one.path[-1])]
                self.acceptance.count(len(tree) - 1, one.depth, len(one.path) - 1)
            cache.commit(row.slot, one.path)  # rejected drafts are beyond its length now
            row.ids.extend(one.tokens)
            row.remaining_tokens -= len(one.tokens)
            row.advance(one.tokens)
        method.commit(plan, accepted, scores)  # update the method's state, as a draft model's cache
        return list(zip(plan.rows, accepted, strict=True))

    @torch.inference_mode()
    def join(self, row: Row, output: ModelOutput) -> Accepted:
        """Make a row live: draw its first token from the `output` of its prompt's prefill."""
        plan = Plan([row], [Tree([row.ids[-1]], [-1])])
        accepted = Method.verify(self.method_of(row.method), plan, mask(plan, output))[0]
        if row.failure is not None:
            raise row.failure
        row.ids.extend(accepted.tokens)
        row.advance(accepted.tokens)
        row.remaining_tokens -= 1
        self.add(row)
        return accepted

    def add(self, row: Row) -> None:
        """Make a row live; all its ids but the newest are cached."""
        insort(self.rows, row, key=lambda other: other.slot)
        if row.remaining_tokens > 0:
            self.method_of(row.method).join(row)

    def leave(self, row: Row) -> None:
        """End a row; its slot keeps what is cached for the next call with that prefix."""
        self.rows.remove(row)
        self.method_of(row.method).leave(row)

    def pause_with(self, serve: Callable[[], None]) -> None:
        """Call `serve` between the passes of drafts if rows may join there."""
        for method in self.methods.values():
            method.pause_with(serve)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Start an idle slot with the first `length` cached tokens of another."""
        self.target.cache.copy(source, slot, length)
        for method in self.methods.values():
            method.copy(source, slot, length)

    def method_of(self, name: str | None) -> Method:
        return self.method if name is None else self.methods[name]

    def begins_alike(self, method: str | None, sampling: Sampling) -> bool:
        """Whether a round draws a row's first token as `join` does."""
        used = self.method_of(method)
        return not used.drafts or (used.lossless and sampling.is_greedy)

    @property
    def lossless(self) -> bool:
        """Whether every method's output has the target's distribution."""
        return all(method.lossless for method in self.methods.values())

    def stats(self) -> dict[str, int]:
        """Return the counters of acceptance and of the methods; equal names are summed."""
        counts = self.acceptance.stats()
        for method in self.methods.values():
            for name, count in method.stats().items():
                counts[name] = counts.get(name, 0) + count
        return counts
