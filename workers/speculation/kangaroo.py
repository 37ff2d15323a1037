"""Kangaroo: the target drafts for itself, from one of its first layers.

Liu et al., "Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting" (2404.18911).
The first exit: a token runs through the layers below `exit_layer`, and a small trained adapter
with the target's own head gives the draft distribution. The second: a draft ends as that of a
`ConfidentExpander`.

Nothing is computed twice: a draft's hidden states at the exit are kept, its keys and values of the
shallow layers are in the cache, and the scoring pass runs the deeper layers alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from workers.model.early_exit import Adapter
from workers.model.target import ModelOutput, Target
from workers.model.tree import Plan, Row, Tree
from workers.speculation.drafter import ConfidentExpander, without_nans
from workers.speculation.method import Method
from workers.speculation.parameters import at_least, fraction, tree_size

FOLDER = "kangaroo"  # of a checkpoint's adapter, beside its weights


class Kangaroo(Method):
    """At most `gamma` drafts a step, by the adapter in the folder `adapter`.

    The default is the folder `kangaroo` of the target's checkpoint. `exit_layer`, if given, must
    be the adapter's. A greedy row's confidence is that of temperature 1.
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
        tree_size(f"gamma {gamma}", 1 + gamma)
        self.threshold = fraction("threshold", threshold)
        if exit_layer is not None:
            at_least("exit_layer", exit_layer, 1)
        folder = Path(adapter).expanduser() if adapter else Path(target.model.folder) / FOLDER
        target.add_early_exit(Adapter.load(folder, target.model, exit_layer))
        self.exit_layer = target.exit_layer
        self._hidden_states = torch.empty(0)

    def draft(self, rows: list[Row]) -> Plan:
        """Draft token by token; a row whose draft has ended takes no part in further passes."""
        trees = [Tree([row.ids[-1]], [-1]) for row in rows]
        depths = [max(0, min(self.gamma, row.remaining_tokens - 1)) for row in rows]
        probs: list[list[Tensor]] = [[] for _ in rows]
        expander = ConfidentExpander(rows, self.threshold)
        running = list(range(len(rows)))  # rows whose newest node is to run
        for level in range(max(depths) + 1):
            drafting = [i for i in running if expander.drafting[i] and level < depths[i]]
            result = self.target.forward(
                [rows[i].slot for i in running],
                [trees[i] for i in running],
                skip=[level] * len(running),
                num_logits=None if drafting else 0,
                layers=(0, self.exit_layer),
            )
            assert result.hidden is not None
            self._store(result.hidden, running, level, len(rows), max(depths) + 1)
            if not drafting:
                break
            ran = [rows[i] for i in running]
            logits = without_nans(ran, result.logits.float(), "the adapter's")
            if len(drafting) < len(running):
                logits = logits[[running.index(i) for i in drafting]]
            tokens, drawn = expander.draw(level, drafting, logits)
            for k, i in enumerate(drafting):
                trees[i].tokens.append(tokens[k])
                trees[i].parents.append(level)
                if drawn is not None and not rows[i].greedy:
                    probs[i].append(drawn[k, 0])
            running = drafting
        for tree, mine in zip(trees, probs, strict=True):
            tree.probs = torch.stack(mine) if mine else None
        return Plan(rows, trees)

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        """Run the deeper layers once, from the drafts' hidden states at the exit."""
        return target.forward(
            [row.slot for row in plan.rows],
            plan.trees,
            states=self._hidden_states[:, : max(map(len, plan.trees))],
            layers=(self.exit_layer, None),
        )

    def _store(self, states: Tensor, rows: list[int], level: int, count: int, most: int) -> None:
        """Keep a level's hidden states [rows, 1, width]; the rest is padding."""
        if level == 0:
            self._hidden_states = states.new_zeros(count, most, states.shape[-1])
        if len(rows) == count:
            self._hidden_states[:, level].copy_(states[:, 0])
        else:
            self._hidden_states[rows, level] = states[:, 0]
