"""SpecTr: several independent draft sequences, verified by optimal transport.

Sun et al., "SpecTr: Fast Speculative Decoding via Optimal Transport" (2310.15141). `count`
sequences of `gamma` tokens are drawn independently; the target scores equal prefixes once.
At each token k-sequential selection (K-SEQ) chooses among the candidates of the sequences that
still agree with what was emitted; its rate is within 1 - (1 - 1/k)^k of the best transport's.
"""

from __future__ import annotations

from workers.model.target import Target
from workers.model.tree import Plan, Row
from workers.speculation import rejection
from workers.speculation.drafter import DraftModelMethod, IndependentExpander, LoadModel
from workers.speculation.parameters import at_least, tree_size


class Spectr(DraftModelMethod):
    """`count` sequences of `gamma` tokens, all equal at temperature 0."""

    sampler = staticmethod(rejection.k_sequential)

    def __init__(
        self, target: Target, load_model: LoadModel, *, draft: str, count: int = 8, gamma: int = 4
    ) -> None:
        self.count, self.gamma = at_least("count", count, 1), at_least("gamma", gamma, 0)
        tree_size(f"count {count} and gamma {gamma}", 1 + count * gamma)
        super().__init__(target, load_model, draft)

    def draft(self, rows: list[Row]) -> Plan:
        return self.plan(rows, self.gamma, IndependentExpander(rows, self.count))
