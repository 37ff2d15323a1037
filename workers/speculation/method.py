"""The interface of a speculation method, and verification by rejection sampling.

A method both drafts and verifies, because a rejection sampler that does not fit the draft
distribution loses exactness without an error. A subclass needs only `draft` and a node-level
`sampler`: the default is one target pass over the plan, then rejection sampling from node to node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from workers.model.sampling import KeyedRng, draw, warp
from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.rng import uniform
from workers.speculation import rejection


class Method:
    """`draft`, `score`, `verify`, `commit` are one round; rows `join` and `leave` between rounds.

    `lossless`: the output has the target's distribution (greedy rows: the same tokens, unless a
    pass over several tokens rounds differently from one over a single token).
    """

    lossless = True
    drafts = True  # whether anything is drafted
    sampler: rejection.RejectionSampler = staticmethod(rejection.independent)  # fits the draws
    registry: ClassVar[Mapping[str, Callable[..., Method]]]  # `METHODS`, for those over others

    def __init__(self, target: Target) -> None:
        self.target = target

    def join(self, row: Row) -> None:
        """Take a row that became live; all its ids but the newest are cached."""

    def leave(self, row: Row) -> None:
        """Release a row that has ended; another may get its slot."""

    def copy(self, source: int, slot: int, length: int) -> None:
        """Follow the target's cache, which copied a prefix from one slot to another."""

    def pause_with(self, serve: Callable[[], None]) -> None:
        """Call `serve` between the passes of a draft if a row may join there; else ignore it."""

    def stats(self) -> dict[str, int]:
        """Return the method's counters since the start, which are added to the engine's."""
        return {}

    def draft(self, rows: list[Row]) -> Plan:
        """Return a token tree for each row, by default of its newest token alone."""
        return Plan(rows, [Tree([row.ids[-1]], [-1]) for row in rows])

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        """Return the target's logits at every node, by one pass over all trees."""
        return target.forward([row.slot for row in plan.rows], plan.trees)

    def verify(self, plan: Plan, scores: ModelOutput) -> list[Accepted]:
        """Return the path that each row accepts and the token that ends it."""
        logits = scores.logits.float()
        # One transfer for both: a float holds every id below 2^24 exactly. The argmax is of the
        # logits, because the softmax may round two of them to one value.
        packed = torch.stack((logits.argmax(-1).float(), logits.softmax(-1).amax(-1)))
        choices, tops = packed.tolist()
        verified = {
            i: self._verify_greedy(plan.trees[i], choices[i], tops[i])
            for i, row in enumerate(plan.rows)
            if row.greedy
        }
        sampled = [i for i, row in enumerate(plan.rows) if not row.greedy]
        if sampled:
            probs = warp(logits[sampled], [plan.rows[i].sampling for i in sampled])
            if probs.shape[1] == 1:
                verified |= zip(sampled, self._draw_all(plan, probs, sampled), strict=True)
            else:
                for own, i in zip(probs, sampled, strict=True):
                    verified[i] = self._verify_sampled(plan.rows[i], plan.trees[i], own)
        for i, accepted in verified.items():
            accepted.confidences = [tops[i][node] for node in accepted.path]
        return [verified[i] for i in range(len(plan.rows))]

    def verify_tree(
        self, tree: Tree, targets: Any, rng_at: Callable[[int], KeyedRng]
    ) -> tuple[list[int], int]:
        """Verify the tree of a sampled row; see `rejection.verify_by_node`."""
        sampler = rejection.target_only if tree.probs is None else self.sampler
        return rejection.verify_by_node(tree, targets, sampler, rng_at)

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        """Update the method's own state, as a draft model's cache, after the rows took tokens."""

    @staticmethod
    def _verify_greedy(tree: Tree, choices: list[float], tops: list[float]) -> Accepted:
        path, tokens = [0], [int(choices[0])]
        while len(tree) > 1:
            children = tree.children(path[-1])
            accepted = next((c for c in children if tree.tokens[c] == tokens[-1]), None)
            if accepted is None:
                break
            path.append(accepted)
            tokens.append(int(choices[accepted]))
        return Accepted(path, tokens, [math.log(tops[node]) for node in path])

    def _verify_sampled(self, row: Row, tree: Tree, probs: Tensor) -> Accepted:
        newest = len(row.ids) - 1
        targets: Any = probs
        if probs.device.type == "cpu":  # numpy's small operations take a third of torch's time
            targets = probs.numpy()
            if tree.probs is not None:
                tree = replace(tree, probs=tree.probs.numpy())
        path, ending = self.verify_tree(
            tree, targets, lambda depth: KeyedRng(row.seed, newest + depth)
        )
        tokens = [tree.tokens[node] for node in path[1:]] + [ending]
        return Accepted(path, tokens, probs[path, tokens].log().tolist())

    @staticmethod
    def _draw_all(plan: Plan, probs: Tensor, sampled: list[int]) -> list[Accepted]:
        rows = [plan.rows[i] for i in sampled]
        numbers = [uniform(row.seed, len(row.ids)) for row in rows]
        column = probs[:, 0]
        tokens = draw(column, torch.tensor(numbers, dtype=torch.float64, device=column.device))
        logprobs = column.gather(1, tokens[:, None]).squeeze(1).log()
        packed = torch.stack((tokens.double(), logprobs.double())).tolist()
        return [Accepted([0], [int(t)], [lp]) for t, lp in zip(*packed, strict=True)]
