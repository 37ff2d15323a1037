"""Relaxed acceptance: accepts drafts that are nearly as likely as the target's choice. **Lossy.**

TensorRT-LLM's `use_relaxed_acceptance_for_thinking`: in a thought, a drafted token is accepted if
it is one of the target's `top_k` likeliest and at most `delta` less probable than the likeliest.
Other tokens, and those that may end the text, are verified by the base method. BiLD's rollback
(2302.07863, section 3.4) has a bound on the probability alone, and takes a call, not a pass.

If greedy, `top_k` 1 and `delta` 0 are the base method, unless two tokens are equally likely. If
sampled, probabilities are those after temperature, top-k and top-p, and a draft that is likely
enough is always accepted: texts are nearer to the draft model's than the target's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.drafter import LoadModel, row_probs
from workers.speculation.lossy import LossyMethod
from workers.speculation.method import Method
from workers.speculation.parameters import at_least, fraction


class Relaxed(LossyMethod):
    """Drafts as `base` does, and accepts more of it.

    An accepted token is among the target's `top_k` likeliest, with a probability at most `delta`
    below the likeliest. The base always verifies a token that may end the thought, and with
    `thoughts_only` also drafts after it, and answers.
    """

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str | None = None,
        base: str = "chain",
        top_k: int = 10,
        delta: float = 0.5,
        thoughts_only: bool = True,
        **parameters: Any,
    ) -> None:
        self.top_k, self.delta = at_least("top_k", top_k, 1), fraction("delta", delta)
        super().__init__(
            target, load_model, draft=draft, base=base, thoughts_only=thoughts_only, **parameters
        )

    @staticmethod
    def check_base(name: str, base: Any) -> None:
        if base.verify is not Method.verify or not base.drafts:
            raise ValueError(f"base {name} verifies no drafts by itself: name another")

    def verify(self, plan: Plan, scores: ModelOutput) -> list[Accepted]:
        """Verify by the base, with scores that allow only the draft if it is likely enough.

        Reported probabilities are those of the target's own scores.
        """
        logits = scores.logits.float()
        if not (chosen := self._likely(plan, logits)):
            return self.base.verify(plan, scores)
        rows, nodes, tokens = (list(column) for column in zip(*chosen, strict=True))
        relaxed = logits.clone()
        relaxed[rows, nodes] = -torch.inf
        relaxed[rows, nodes, tokens] = 0.0
        verified = self.base.verify(plan, replace(scores, logits=relaxed))
        self._report(plan, logits, [(i, verified[i]) for i in sorted(set(rows))])
        return verified

    @staticmethod
    def _report(plan: Plan, logits: Tensor, verified: list[tuple[int, Accepted]]) -> None:
        """Write the target's own probabilities into the accepted paths; one transfer."""
        placed = [
            (i, node, token)
            for i, one in verified
            for node, token in zip(one.path, one.tokens, strict=True)
        ]
        rows, nodes, tokens = (list(column) for column in zip(*placed, strict=True))
        own = logits[rows, nodes]
        laws = row_probs([plan.rows[i] for i in rows], own[:, None])[:, 0]
        reported = laws.gather(1, torch.tensor(tokens, device=laws.device)[:, None])[:, 0].log()
        logprobs, confidences = torch.stack((reported, own.softmax(-1).amax(-1))).tolist()
        for _, one in verified:
            size = len(one.path)
            one.logprobs, logprobs = logprobs[:size], logprobs[size:]
            one.confidences, confidences = confidences[:size], confidences[size:]

    def _likely(self, plan: Plan, logits: Tensor) -> list[tuple[int, int, int]]:
        """Return (row, node, token) for each child that its node must accept, the likeliest one."""
        drafted = [
            (i, tree.parents[node], tree.tokens[node])
            for i, (row, tree) in enumerate(zip(plan.rows, plan.trees, strict=True))
            if not self.exact(row)
            for node in self._relaxed(row, tree)
        ]
        if not drafted:
            return []
        rows, nodes, tokens = (list(column) for column in zip(*drafted, strict=True))
        scored = logits[rows, nodes]
        laws = row_probs([plan.rows[i] for i in rows], scored[:, None])[:, 0]
        own = laws.gather(1, torch.tensor(tokens, device=laws.device)[:, None])
        accepted = (own > 0) & (own >= laws.amax(-1, keepdim=True) - self.delta)
        accepted &= (laws > own).sum(-1, keepdim=True) < self.top_k
        best: dict[tuple[int, int], tuple[float, int]] = {}
        packed = torch.stack((own[:, 0].double(), accepted[:, 0], scored.argmax(-1)))
        for (i, node, token), probability, is_likely, choice in zip(
            drafted, *packed.tolist(), strict=True
        ):
            row = plan.rows[i]
            if row.greedy and token == choice:  # accepted anyway
                best[i, node] = (1.0, -1)
            elif row.may_end is not None and row.may_end(int(choice)):
                continue  # an end that the target wants is not passed over
            elif is_likely and probability > best.get((i, node), (0.0, 0))[0]:
                best[i, node] = (probability, token)
        return [(i, node, token) for (i, node), (_, token) in best.items() if token >= 0]

    def _relaxed(self, row: Row, tree: Tree) -> list[int]:
        """Return the drafted nodes that need not be the target's choice."""
        drafted = range(1, len(tree))
        if row.may_end is None:
            return [*drafted]
        ends, answers = [False] * len(tree), [False] * len(tree)
        for node in drafted:
            parent = tree.parents[node]
            ends[node] = row.may_end(tree.tokens[node])
            answers[node] = self.thoughts_only and (ends[parent] or answers[parent])
        return [node for node in drafted if not (ends[node] or answers[node])]
