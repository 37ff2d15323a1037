"""The shape of every speculation method.

A method is one object for drafting and walking, because a draft law and a rule that do not
belong together lose exactness silently. The defaults make a method of any `draft` and a node
`rule`: one target pass over the plan, then a walk node by node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workers.model.rng import uniform
from workers.model.sampling import Chance, draw, warp
from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation import rules


class Method:
    """Draft, verify, walk, commit; `join` and `leave` tell of rows that come and go.

    `lossless` says whether the output law is the target's (greedy: the same tokens).
    """

    lossless = True
    rule: rules.Rule = staticmethod(rules.rejection)  # belongs to how siblings are drawn
    by_path = False  # whether whole paths are judged instead of one node after the other
    converged = True  # whether it has found its way of working; what adapts may need some rounds

    def __init__(self, target: Target) -> None:
        self.target = target

    def join(self, row: Row) -> None:
        """A row became live: its prompt is cached and its first token drawn."""

    def leave(self, row: Row) -> None:
        """A row is gone; its slot may be given to another."""

    def copy(self, source: int, slot: int, length: int) -> None:
        """The target's cache copied a prefix from one slot to another."""

    def stats(self) -> dict[str, int]:
        """Counters of its own since the start, for the engine's."""
        return {}

    def draft(self, rows: list[Row]) -> Plan:
        """A token tree for each live row; without a drafter, its newest token alone."""
        return Plan(rows, [Tree([row.ids[-1]], [-1]) for row in rows])

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        """One target pass over all trees."""
        return target.forward([row.slot for row in plan.rows], plan.trees)

    def verify_tree(
        self, tree: Tree, laws: Any, chance_at: Callable[[int], rules.Choices]
    ) -> tuple[list[int], int]:
        """Verify the tree of a sampled row; returns what `rules.verify_by_node` does."""
        if tree.laws is not None and self.by_path:
            return rules.verify_by_path(tree, laws, chance_at(1))
        rule = rules.follow if tree.laws is None else self.rule
        return rules.verify_by_node(tree, laws, rule, chance_at)

    def verify(self, plan: Plan, result: ModelOutput) -> list[Accepted]:
        """Which path each row accepts and which token ends it. One transfer when greedy."""
        logits = result.logits.float()
        # One transfer for both: a float holds every id below 2^24 exactly. The choice is made
        # among the logits, of which the softmax may round two to one.
        found = torch.stack((logits.argmax(-1).float(), logits.softmax(-1).amax(-1)))
        choices, tops = found.tolist()
        sampled = [i for i, row in enumerate(plan.rows) if not row.greedy]
        laws = warp(logits[sampled], [plan.rows[i].sampling for i in sampled]) if sampled else None
        walked: list[Accepted | None] = [None] * len(plan.rows)
        if laws is not None and laws.shape[1] == 1:
            for i, accepted in zip(sampled, self._draw_all(plan, laws, sampled), strict=True):
                walked[i] = accepted
        elif laws is not None:
            for law, i in zip(laws, sampled, strict=True):
                walked[i] = self._verify_sampled(plan.rows[i], plan.trees[i], law)
        for i, tree in enumerate(plan.trees):
            accepted = walked[i] or self._verify_greedy(tree, choices[i], tops[i])
            accepted.confidences = [tops[i][node] for node in accepted.path]
            walked[i] = accepted
        return [accepted for accepted in walked if accepted is not None]

    def commit(self, plan: Plan, accepted: Sequence[Accepted], result: ModelOutput) -> None:
        """The rows have taken their tokens: bring the drafter's state in line."""

    @staticmethod
    def _verify_greedy(tree: Tree, choices: list[float], tops: list[float]) -> Accepted:
        path, tokens = [0], [int(choices[0])]
        while len(tree) > 1:
            children = tree.children(path[-1])
            taken = next((c for c in children if tree.tokens[c] == tokens[-1]), None)
            if taken is None:
                break
            path.append(taken)
            tokens.append(int(choices[taken]))
        return Accepted(path, tokens, [math.log(tops[node]) for node in path])

    def _verify_sampled(self, row: Row, tree: Tree, laws: Tensor) -> Accepted:
        newest = len(row.ids) - 1
        targets: Any = laws
        if laws.device.type == "cpu":  # numpy's small operations cost a third of torch's
            targets = laws.numpy()
            if tree.laws is not None:
                tree = replace(tree, laws=tree.laws.numpy())
        path, ending = self.verify_tree(
            tree, targets, lambda depth: Chance(row.seed, newest + depth)
        )
        tokens = [tree.tokens[node] for node in path[1:]] + [ending]
        return Accepted(path, tokens, laws[path, tokens].log().tolist())

    @staticmethod
    def _draw_all(plan: Plan, laws: Tensor, sampled: list[int]) -> list[Accepted]:
        """One draw for each sampled row of a plan without drafts."""
        rows = [plan.rows[i] for i in sampled]
        numbers = [uniform(row.seed, len(row.ids)) for row in rows]
        column = laws[:, 0]
        tokens = draw(column, torch.tensor(numbers, dtype=torch.float64, device=column.device))
        logs = column.gather(1, tokens[:, None]).squeeze(1).log()
        packed = torch.stack((tokens.double(), logs.double())).tolist()
        return [Accepted([0], [int(t)], [lp]) for t, lp in zip(*packed, strict=True)]
