"""Reflective verification: the target scores a draft twice before it verifies it. **Lossy.**

"Think Before You Accept: Semantic Reflective Verification for Faster Speculative Decoding"
(2505.18629). A short prompt and a copy of the path follow every path of a draft, in the same pass:

    ... newest | d1 .. dn | prompt | d1 .. dn-1

A node has the logits z, and its copy has z', which attend to the whole draft and the prompt.
Verification uses (1 - alpha) z + alpha z', for acceptance and recovered tokens alike. The token
after a whole draft is verified by z alone. The paper's prompt is not public, so it is a parameter.

z' depends on the tokens it verifies, so the output has no model's distribution, and the more the
prompt asks for a repetition, the more is accepted. `alpha` is from 0 (the base method exactly, at
its cost) to 1 (z' alone); its effect on answers must be measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from workers.model.target import ModelOutput, Target
from workers.model.tree import Plan, Tree
from workers.speculation.drafter import LoadModel
from workers.speculation.lossy import LossyMethod
from workers.speculation.method import Method
from workers.speculation.parameters import MOST_NODES, fraction, tree_size

PROMPT = "\nWait, let me check:"

Reading = tuple[int, int, float]
"""(node, its copy, weight among its copies)."""


class Reflective(LossyMethod):
    """Drafts and verifies as `base` does, with reflected scores; `prompt`: a text or token ids."""

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str | None = None,
        base: str = "chain",
        alpha: float = 0.3,
        prompt: str | Sequence[int] = PROMPT,
        thoughts_only: bool = False,
        **parameters: Any,
    ) -> None:
        super().__init__(
            target, load_model, draft=draft, base=base, thoughts_only=thoughts_only, **parameters
        )
        self.alpha, self.prompt = fraction("alpha", alpha), _ids(prompt, target)
        leaves, levels = _shape(self.base)
        if levels == 0:
            raise ValueError(f"base {base} drafts nothing that could be scored again")
        each = 2 * levels - 1 + len(self.prompt)
        tree_size(f"a prompt of {len(self.prompt)} tokens", 1 + leaves * each)

    @staticmethod
    def check_base(name: str, base: Any) -> None:
        if base.score is not Method.score:
            raise ValueError(
                f"base {name} scores its drafts in a separate pass, which cannot be repeated"
            )

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        """Score drafts and copies in one pass; return the combined logits of the drafts' nodes."""
        if self.alpha == 0 or all(map(self.exact, plan.rows)):
            return self.base.score(target, plan)
        trees, readings = [*plan.trees], []
        for i, row in enumerate(plan.rows):
            if not self.exact(row):
                room = target.max_len - len(row.ids)
                trees[i], found = self.reflected(trees[i], room)
                readings += [(i, *reading) for reading in found]
        result = self.base.score(target, replace(plan, trees=trees))
        logits = result.logits.float()
        fused = logits[:, : max(map(len, plan.trees))]
        if readings:
            rows, nodes, copies, shares = (
                torch.tensor(column, device=logits.device) for column in zip(*readings, strict=True)
            )
            change = self.alpha * shares[:, None] * (logits[rows, copies] - logits[rows, nodes])
            fused = fused.index_put((rows, nodes), change, accumulate=True)
        return replace(result, logits=fused)

    def reflected(self, tree: Tree, room: int) -> tuple[Tree, list[Reading]]:
        """Return the tree with the prompt and a copy of the path below each leaf, and its readings.

        A node above several leaves has several copies, whose logits are averaged. A leaf has no
        copy if it would exceed the context (`room` more positions) or the cache.
        """
        longer = Tree([*tree.tokens], [*tree.parents])
        pairs: list[tuple[int, int]] = []
        parents = set(tree.parents)
        for leaf in range(1, len(tree)):
            if leaf in parents:
                continue
            path = [leaf]
            while path[0] > 0:
                path.insert(0, tree.parents[path[0]])
            copied = path[:-1]  # the copy of the first node is the end of the prompt
            tail = [*self.prompt, *(tree.tokens[node] for node in copied[1:])]
            if len(path) - 1 + len(tail) > room or len(longer) + len(tail) > MOST_NODES:
                continue
            first = len(longer)
            longer.tokens += tail
            longer.parents += [leaf, *range(first, first + len(tail) - 1)]
            pairs += zip(copied, range(first + len(self.prompt) - 1, len(longer)), strict=True)
        counts = Counter(node for node, _ in pairs)
        return longer, [(node, copy, 1 / counts[node]) for node, copy in pairs]


def _ids(prompt: Any, target: Target) -> list[int]:
    """Return the prompt as ids, checked against the target's vocabulary."""
    ids = prompt
    if isinstance(prompt, str):
        if target.encode is None:
            raise ValueError("prompt must be token ids where there is no tokenizer")
        ids = target.encode(prompt)
    known = range(target.vocabulary)
    if not isinstance(ids, list | tuple) or not all(
        type(token) is int and token in known for token in ids
    ):
        raise ValueError(f"prompt must be a text or token ids below {target.vocabulary}")
    if not ids:
        raise ValueError("prompt must not be empty")
    return list(ids)


def _shape(base: Any) -> tuple[int, int]:
    """Return the most leaves and levels of a base's drafts."""
    if (branching := getattr(base, "branching", None)) is not None:
        return prod(branching), len(branching)
    return getattr(base, "count", getattr(base, "width", 1)), getattr(base, "gamma", 0)
