"""Token trees: what a method drafts, and what of it is accepted.

Nodes are stored breadth-first. Node 0 is the newest committed token, which the target's cache
does not hold yet; the logits of node i give the distribution of its children. A chain is a tree
with one branch, no speculation is a tree with one node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.types import Sampling

NO_LIMIT = 1 << 60


@dataclass(slots=True, eq=False)
class Row:
    """One live sequence."""

    slot: int
    ids: list[int]  # committed, the prompt included; the target's cache lacks the last one yet
    sampling: Sampling
    seed: int
    remaining_tokens: int = NO_LIMIT  # that may be emitted; no draft is longer
    method: str | None = None  # None: the decoder's default
    matcher: Any = None  # `TokenMatcher`: the tokens that may come next under a grammar
    failure: Exception | None = None  # why it cannot continue
    answering: bool = False  # it writes an answer, not a thought
    may_end: Callable[[int], bool] | None = None  # with these tokens, so a chain of drafts does too

    @property
    def greedy(self) -> bool:
        return self.sampling.is_greedy

    def advance(self, tokens: Sequence[int]) -> None:
        """Take the matcher after tokens that were emitted, up to the one that ends the text."""
        if self.matcher is not None and self.failure is None:
            for token in tokens:
                if not self.matcher.accept(token):
                    break


@dataclass(slots=True)
class Tree:
    """A draft of one row.

    Attributes:
        probs: [nodes with children, vocabulary]; `probs[i]` is the distribution the (first) child
            of node i was *actually* drawn from. None: the draft is a deterministic function of
            the prefix.
        drawn: for samplers that count duplicates, the children of each node in the order of the
            draws, each as often as it was drawn. None: every child once.
    """

    tokens: list[int]  # of each node, the newest committed token first
    parents: list[int]  # -1 for node 0, then smaller ones; siblings in the order of their draws
    probs: Any = None
    drawn: list[list[int]] | None = None

    @classmethod
    def chain(cls, tokens: list[int]) -> Tree:
        return cls(tokens, list(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return len(self.tokens) == 1 or self.parents == list(range(-1, len(self.tokens) - 1))

    @property
    def depth(self) -> int:
        """Positions after the newest token that its longest branch reaches."""
        return max(self.ancestor_masks()[0])

    def children(self, node: int) -> list[int]:
        return [i for i in range(node + 1, len(self.parents)) if self.parents[i] == node]

    def ancestor_masks(self) -> tuple[list[int], list[int]]:
        """Depth of each node, and its ancestors and itself as the set bits of an integer."""
        depths, bits = [0] * len(self.parents), [1] * len(self.parents)
        for node in range(1, len(self.parents)):
            parent = self.parents[node]
            depths[node] = depths[parent] + 1
            bits[node] = bits[parent] | 1 << node
        return depths, bits


@dataclass(slots=True)
class Plan:
    """One draft for every live row, in the order of the rows."""

    rows: list[Row]
    trees: list[Tree]

    def beside(self, rows: Sequence[Row]) -> Plan:
        """Return the plan with more rows, for which nothing is drafted."""
        if not rows:
            return self
        trees = [*self.trees, *(Tree([row.ids[-1]], [-1]) for row in rows)]
        both = sorted(zip([*self.rows, *rows], trees, strict=True), key=lambda one: one[0].slot)
        return Plan([row for row, _ in both], [tree for _, tree in both])


@dataclass(slots=True)
class Accepted:
    """What one step gives one row.

    `logprobs`: natural logarithm of each emitted token's probability under the target with the
    row's sampling parameters (greedy: temperature 1); `confidences`: the target's top probability
    there (temperature 1; NaN if the logits are).
    """

    path: list[int]  # accepted nodes from node 0 down; the cache keeps exactly these
    tokens: list[int]  # emitted: those of `path[1:]`, then the recovered or bonus token
    logprobs: list[float] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    depth: int = 0  # positions that the draft reached
    rejected: Sequence[int] = ()  # the drafts at the last token's place

    def behind(self, count: int) -> Accepted:
        """What the step gives after its first `count` tokens."""
        return replace(
            self,
            path=self.path[count:],
            tokens=self.tokens[count:],
            logprobs=self.logprobs[count:],
            confidences=self.confidences[count:],
            depth=max(0, self.depth - count),
        )
