"""Kangaroo: the target drafts for itself, from one of its first layers.

Liu et al., "Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting" (2404.18911).
The first exit: a token runs through the layers below `exit_layer`, and a small trained adapter
with the target's own head says what comes next. The second: drafting ends early behind a token
at whose place the adapter's top probability was under `threshold`; that token is verified like
the others. So whether one more is drafted is a function of the prefix, never of the token drawn
there, and the walk of speculative sampling stays exact.

Nothing is computed twice: a draft's shallow states are kept, its shallow keys and values lie in
the cache, and the verifying pass runs the deeper layers alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from workers.model.early_exit import Adapter
from workers.model.target import ModelOutput, Target
from workers.model.tree import Plan, Row, Tree
from workers.speculation.drafter import (
    Independent,
    at_least,
    confidences,
    share,
    small_enough,
)
from workers.speculation.method import Method

FOLDER = "kangaroo"
"""Where a checkpoint's adapter lies, beside its weights."""


class Kangaroo(Method):
    """At most `gamma` drafts a round, by the adapter in the folder `adapter`.

    None: the folder `kangaroo` of the target's checkpoint. The adapter knows its `exit_layer`; to
    name one makes sure of it. A greedy row's confidence is that of temperature 1.
    """

    def __init__(
        self,
        target: Target,
        load_model: object = None,
        *,
        adapter: str | None = None,
        exit_layer: int | None = None,
        gamma: int = 6,
        threshold: float = 0.6,
    ) -> None:
        super().__init__(target)
        self.gamma = at_least("gamma", gamma, 0)
        small_enough(f"gamma {gamma}", 1 + gamma)
        self.threshold = share("threshold", threshold)
        if exit_layer is not None:
            at_least("exit_layer", exit_layer, 1)
        folder = Path(adapter).expanduser() if adapter else Path(target.model.name_or_path) / FOLDER
        target.exit_by(Adapter.load(folder, target.model, exit_layer))
        self.exit_layer = target.exit_layer
        self._states = torch.empty(0)

    def draft(self, rows: list[Row]) -> Plan:
        """Token by token; a row whose draft has ended leaves the passes of the others."""
        trees = [Tree([row.ids[-1]], [-1]) for row in rows]
        depths = [max(0, min(self.gamma, row.remaining_tokens - 1)) for row in rows]
        laws: list[list[Tensor]] = [[] for _ in rows]
        sure = [True] * len(rows)
        reading = list(range(len(rows)))  # rows whose newest node the shallow layers lack
        for level in range(max(depths) + 1):
            drafting = [i for i in reading if sure[i] and level < depths[i]]
            result = self.target.forward(
                [rows[i].slot for i in reading],
                [trees[i] for i in reading],
                skip=[level] * len(reading),
                num_logits=None if drafting else 0,
                layers=(0, self.exit_layer),
            )
            self._keep(result.hidden[self.exit_layer], reading, level, len(rows), max(depths) + 1)
            if not drafting:
                break
            logits = result.logits.float()
            if len(drafting) < len(reading):
                logits = logits[[reading.index(i) for i in drafting]]
            chosen = [rows[i] for i in drafting]
            children, drawn = Independent(chosen)(level, logits, [[0]] * len(chosen))
            top = confidences(logits, drawn)
            for k, i in enumerate(drafting):
                ((_, token),) = children[k]
                trees[i].tokens.append(token)
                trees[i].parents.append(level)
                sure[i] = top[k] >= self.threshold
                if drawn is not None and not rows[i].greedy:
                    laws[i].append(drawn[k, 0])
            reading = drafting
        for tree, mine in zip(trees, laws, strict=True):
            tree.laws = torch.stack(mine) if mine else None
        return Plan(rows, trees)

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        """The deeper layers over the shallow states of the drafts."""
        return target.forward(
            [row.slot for row in plan.rows],
            plan.trees,
            states=self._states[:, : max(map(len, plan.trees))],
            layers=(self.exit_layer, None),
        )

    def _keep(self, states: Tensor, rows: list[int], level: int, count: int, most: int) -> None:
        """Lay up a level's shallow states [rows, 1, width]; what is never filled is padding."""
        if level == 0:
            self._states = states.new_zeros(count, most, states.shape[-1])
        if len(rows) == count:
            self._states[:, level].copy_(states[:, 0])
        else:
            self._states[rows, level] = states[:, 0]
