"""FSPAD: a feature drafter with feature sampling, on the dynamic tree of EAGLE-2.

Gui et al., "Boosting Lossless Speculative Decoding via Feature Sampling and Partial Alignment
Distillation" (2408.15562); tree: Li et al., EAGLE-2 (2406.16858). If the head's probabilities are
well calibrated, their product along a path is the probability that the path is accepted. So each
level is expanded at its `width` likeliest nodes, and the `nodes` likeliest of all tokens seen are
verified. A node is likelier than its child, so the parent is always among them.

The tree is a function of the text and the sampling parameters, without random draws. So it is
verified by drawing from the target (`rejection.target_only`). That is exact, and no verification of
such a tree accepts more: a child can be accepted with at most the target's probability of its
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.drafter import (
    Drafter,
    DrafterMethod,
    Level,
    LoadModel,
    TreeExpander,
    row_probs,
)
from workers.speculation.feature_head import FeatureDrafter, FeatureHead
from workers.speculation.parameters import at_least, tree_size

FOLDER = "fspad"  # of a checkpoint's head, beside its weights


class Fspad(DrafterMethod):
    """Trees of at most `nodes` drafted tokens and `depth` levels.

    `head` is a folder of trained weights, by default that beside the target's own.
    """

    def __init__(
        self,
        target: Target,
        load_model: LoadModel | None = None,
        *,
        head: str | None = None,
        depth: int = 6,
        width: int = 4,
        nodes: int = 12,
    ) -> None:
        self.depth = at_least("depth", depth, 0)
        self.width, self.nodes = at_least("width", width, 1), at_least("nodes", nodes, 1)
        tree_size(f"nodes {nodes}", 1 + nodes)
        # The drafter runs the tokens of the last step and all levels but the deepest.
        tree_size(f"depth {depth} and width {width}", 1 + depth + width * max(0, depth - 1))
        checkpoint = target.model.folder
        if head is None and not checkpoint:
            raise ValueError("head must name a folder: the target was not loaded from one")
        folder = Path(checkpoint) / FOLDER if head is None else Path(head).expanduser()
        super().__init__(
            target, Drafter(FeatureDrafter(FeatureHead.load(folder, target.model), target))
        )

    def draft(self, rows: list[Row]) -> Plan:
        expander = DynamicTree(rows, self.width, self.nodes)
        self.plan(rows, self.depth, expander)
        return Plan(rows, expander.trees())

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        """Keep only the root: accepted drafts run again, with the target's own features."""
        for row, one in zip(plan.rows, accepted, strict=True):
            self.drafter.commit(row, one.path[:1])


class _Candidate(NamedTuple):
    """A token that may be drafted; `parent` is an index in the same list, -1 the root."""

    score: float
    level: int
    parent: int
    token: int


class DynamicTree(TreeExpander):
    """The dynamic tree of EAGLE-2: chooses the nodes of a level, and those to verify.

    `scores` [rows, nodes]: log-probabilities of the paths to the level's nodes, -inf beyond a row's
    last one.
    """

    def __init__(self, rows: Sequence[Row], width: int, nodes: int) -> None:
        self.rows, self.width, self.nodes = rows, width, nodes
        self.scores = torch.zeros(len(rows), 1, dtype=torch.float64)
        self.seen: list[list[_Candidate]] = [[] for _ in rows]
        self.level: list[list[int]] = [[-1] for _ in rows]  # indices in `seen` of the level's nodes

    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        best = row_probs(self.rows, logits).topk(min(self.width, logits.shape[-1]))
        # Clamped, so that a parent's score bounds its child's despite rounding.
        logs = best.values.double().log().clamp(max=0).cpu()
        sums = (self.scores[:, : logits.shape[1], None] + logs).nan_to_num(nan=-torch.inf)
        ordered, order = sums.flatten(1).sort(descending=True, stable=True)
        self.scores = ordered[:, : self.width]
        tokens, scores = best.indices.flatten(1).tolist(), sums.flatten(1).tolist()
        fan, children = logs.shape[2], []
        for i, places in enumerate(order.tolist()):
            seen, parents = self.seen[i], self.level[i]
            chosen = [place for place in places if scores[i][place] > -torch.inf]
            self.level[i] = list(range(len(seen), len(seen) + len(chosen[: self.width])))
            for place in chosen:
                parent = parents[place // fan]
                seen.append(_Candidate(scores[i][place], level + 1, parent, tokens[i][place]))
            children.append([(place // fan, tokens[i][place]) for place in chosen[: self.width]])
        return children, None

    def trees(self) -> list[Tree]:
        """Return the tree of each row's likeliest tokens; ties go to those nearer to the root."""
        trees = []
        for row, seen in zip(self.rows, self.seen, strict=True):
            near = [i for i, one in enumerate(seen) if one.level < row.remaining_tokens]
            best = sorted(sorted(near, key=lambda i: (-seen[i].score, i))[: self.nodes])
            node = {-1: 0} | {place: 1 + i for i, place in enumerate(best)}
            tokens = [row.ids[-1], *(seen[place].token for place in best)]
            trees.append(Tree(tokens, [-1, *(node[seen[place].parent] for place in best)]))
        return trees
