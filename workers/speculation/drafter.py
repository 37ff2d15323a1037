"""Runs a draft model for the methods that use one, with a separate cache per slot.

A draft grows level by level: one pass of the draft model scores the newest level of every row's
tree, and a `TreeExpander` chooses the children of its nodes. Earlier levels are in the cache, so
each node runs once; the last level does not run at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestrator.types import Sampling
from workers.model.network import Network
from workers.model.sampling import draw, gumbels, is_nan, nan_logits, warp
from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.rng import DRAFT, key, uniform
from workers.speculation.method import Method

LoadModel = Callable[[str], Network]
"""Loads a checkpoint with the target's tokenizer, by name, on its device; caches models."""
Child = tuple[int, int]
"""(index of the parent in its level, token)."""
Level = tuple[list[list[Child]], Tensor | None]
"""Each row's children in the order of the draws, and the distributions [rows, nodes, vocabulary]
they were drawn from (None if all rows are greedy)."""


class TreeExpander(ABC):
    """Chooses the children of a level's nodes; one object serves one step."""

    @abstractmethod
    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        """Return the children of the nodes at depth `level`.

        Args:
            logits: [rows, nodes, vocabulary] in float32; rows with fewer nodes are padded.
            parent_index: for each row, the index in this level of each child that the last call
                returned, in that order: equal ones share a node. The root has index 0.
        """

    def ended(self) -> bool:
        """Whether no row gets another level."""
        return False


class Drafter:
    """A draft model with a cache of the target's slots; missing tokens run with the next draft."""

    pause: Callable[[], None] = staticmethod(lambda: None)  # called between the passes of a draft

    def __init__(self, model: Target) -> None:
        self.model = model
        self.cache = self.model.cache
        self._cached: dict[int, tuple[int, int]] = {}  # by slot: nodes before the tree, nodes run

    def join(self, row: Row) -> None:
        """Prefill those of the row's tokens that the slot lacks, except the newest."""
        prompt = row.ids[:-1]
        if self.cache.truncate(row.slot, row.ids, len(prompt)) < len(prompt):
            self.model.prefill(row.slot, prompt, num_logits=0)

    def grow(
        self, rows: Sequence[Row], depths: Sequence[int], expander: TreeExpander
    ) -> list[Tree]:
        """Return one tree per row, `depths[row]` levels below its newest token."""
        self._cached = {}
        if max(depths) == 0:
            return [Tree([row.ids[-1]], [-1]) for row in rows]
        slots = [row.slot for row in rows]
        growing = [_Growing(row.ids[self.cache.lengths[row.slot] :]) for row in rows]
        grown = [one.tree for one in growing]
        skip, parent_index = [0] * len(rows), [[0] for _ in rows]
        for level in range(max(depths)):
            logits = self.model.forward(slots, grown, skip=skip).logits
            if level == 0:  # after tokens that the cache lacked, the root is the last
                every = torch.arange(len(rows), device=logits.device)
                roots = torch.tensor([one.before for one in growing], device=logits.device)
                logits = logits[every, roots, None]
            skip = [len(tree) for tree in grown]
            logits = without_nans(rows, logits.float(), "the draft's")
            children, probs = expander(level, logits, parent_index)
            parent_index = [
                one.add(children[i], None if probs is None or rows[i].greedy else probs[i])
                for i, one in enumerate(growing)
            ]
            if expander.ended() or not any(parent_index):  # no probability is left
                break
            self.pause()
        self._cached = {
            slot: (one.before, run) for slot, one, run in zip(slots, growing, skip, strict=True)
        }
        return [one.cut(depth) for one, depth in zip(growing, depths, strict=True)]

    def commit(self, row: Row, path: Sequence[int]) -> None:
        """Cut the cache to the accepted nodes; `row.ids` now ends with them and one more token."""
        if row.failure is not None:
            self.cache.reset(row.slot)  # its memory may hold NaNs
        elif row.slot in self._cached:
            before, run = self._cached[row.slot]
            kept = [before + node for node in path if before + node < run]
            self.cache.commit(row.slot, [*range(before), *kept])


class _Growing:
    """One row's tree, level by level.

    `tree` is what the draft model runs: `before` committed tokens that its cache lacks, then the
    root. `ends[l]` counts its nodes down to level l.
    """

    def __init__(self, missing: list[int]) -> None:
        self.tree, self.before, self.ends = Tree.chain(missing), len(missing) - 1, [len(missing)]
        self.probs: list[Tensor] = []  # of each level that has children, [nodes, vocabulary]
        self.drawn: list[list[list[int]]] = []  # likewise, the children of its nodes

    def add(self, children: list[Child], probs: Tensor | None) -> list[int]:
        """Add a level, equal children as one node; return the index of each child in it."""
        end = self.ends[-1]
        first = self.ends[-2] if len(self.ends) > 1 else self.before
        nodes: dict[Child, int] = {}
        index = [nodes.setdefault(child, len(nodes)) for child in children]
        drawn: list[list[int]] = [[] for _ in range(end - first)]
        for (parent, _), node in zip(children, index, strict=True):
            drawn[parent].append(end + node - self.before)
        self.drawn.append(drawn)
        if probs is not None and children:
            self.probs.append(probs[: end - first])
        self.tree.tokens.extend(token for _, token in nodes)
        self.tree.parents.extend(first + parent for parent, _ in nodes)
        self.ends.append(len(self.tree))
        return index

    def cut(self, depth: int) -> Tree:
        depth = min(depth, len(self.ends) - 1)
        before, end = self.before, self.ends[depth]
        if depth == 0:
            return Tree(self.tree.tokens[before:end], [-1])
        drawn = [nodes for level in self.drawn[:depth] for nodes in level]
        return Tree(
            self.tree.tokens[before:end],
            [-1, *(parent - before for parent in self.tree.parents[before + 1 : end])],
            torch.cat(self.probs[:depth]) if self.probs else None,
            drawn + [[]] * (end - self.ends[depth - 1]),
        )


def without_nans(rows: Sequence[Row], logits: Tensor, whose: str) -> Tensor:
    """Replace NaNs in a drafter's logits [rows, nodes, vocabulary], and fail only their rows."""
    if not is_nan(logits):
        return logits
    for row, own in zip(rows, logits, strict=True):
        if is_nan(own):
            row.failure = nan_logits(whose)
    return logits.nan_to_num()


def row_probs(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """Return [rows, nodes, vocabulary] probabilities under each row's sampling.

    Greedy rows get those at temperature 1.
    """
    return warp(logits, [Sampling(1.0) if row.greedy else row.sampling for row in rows])


def gumbel_noise(rows: Sequence[Row], level: int, logits: Tensor) -> Tensor:
    """Return [rows, nodes, vocabulary] Gumbel noise of a level, zero for greedy rows."""
    nodes, vocabulary = logits.shape[1:]
    keys = [
        key(row.seed, len(row.ids), DRAFT, level, node) for row in rows for node in range(nodes)
    ]
    noise = gumbels(keys, vocabulary, logits.device).view(logits.shape)
    noise[[row.greedy for row in rows]] = 0
    return noise


class IndependentExpander(TreeExpander):
    """`count` independent sequences a row; greedy rows, whose sequences are equal, get one."""

    def __init__(self, rows: Sequence[Row], count: int = 1) -> None:
        self.rows, self.count = rows, count
        self.sampled = [i for i, row in enumerate(rows) if not row.greedy]

    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        if len(self.sampled) < len(self.rows):
            best = logits[:, 0].argmax(-1).tolist()
            children: list[list[Child]] = [[(0, token)] for token in best]
        else:
            children = [[] for _ in self.rows]
        if not self.sampled:
            return children, None
        probs = row_probs(self.rows, logits)
        if level == 0:
            parent_index = [[0] * self.count for _ in self.rows]
        drawn = [(i, parent) for i in self.sampled for parent in parent_index[i]]
        numbers = [
            uniform(row.seed, len(row.ids), DRAFT, level, sequence)
            for row in map(self.rows.__getitem__, self.sampled)
            for sequence in range(self.count)
        ]
        owners, parents = torch.tensor(drawn, device=probs.device).unbind(1)
        column = torch.tensor(numbers, dtype=torch.float64, device=probs.device)
        tokens = draw(probs[owners, parents], column).tolist()
        for k, i in enumerate(self.sampled):
            own = tokens[k * self.count : (k + 1) * self.count]
            children[i] = list(zip(parent_index[i], own, strict=True))
        return children, probs


class ConfidentExpander(TreeExpander):
    """One sequence a row, which ends with a token that was unsure, or with which the text may end.

    Unsure: the top probability there was below `threshold`; a greedy row's is that of temperature
    1. Whether a token is drafted depends on its prefix alone, never on the token, so drafts have
    the distribution that speculative sampling assumes.
    """

    def __init__(self, rows: Sequence[Row], threshold: float) -> None:
        self.rows, self.threshold = rows, threshold
        self.drafting = [True] * len(rows)

    def __call__(self, level: int, logits: Tensor, parent_index: list[list[int]]) -> Level:
        active = [i for i, drafting in enumerate(self.drafting) if drafting]
        if len(active) < len(self.rows):
            logits = logits[active]
        tokens, probs = self.draw(level, active, logits)
        children: list[list[Child]] = [[] for _ in self.rows]
        for i, token in zip(active, tokens, strict=True):
            children[i] = [(0, token)]
        if probs is not None and len(active) < len(self.rows):
            padded = probs.new_zeros(len(self.rows), *probs.shape[1:])
            padded[active] = probs
            probs = padded
        return children, probs

    def draw(
        self, level: int, active: Sequence[int], logits: Tensor
    ) -> tuple[list[int], Tensor | None]:
        """Draw a token of each active row from logits [active, 1, vocabulary]; may end its draft.

        Return the tokens, and the distributions they were drawn from (None if all are greedy).
        """
        rows = [self.rows[i] for i in active]
        drawn, probs = IndependentExpander(rows)(level, logits, [[0] for _ in rows])
        tops = [1.0] * len(rows)
        if self.threshold:
            tops = (logits.softmax(-1) if probs is None else probs).amax(-1)[:, 0].tolist()
        for i, top, ((_, token),) in zip(active, tops, drawn, strict=True):
            may_end = self.rows[i].may_end
            ends = may_end is not None and may_end(token)
            self.drafting[i] = top >= self.threshold and not ends
        return [token for ((_, token),) in drawn], probs

    def ended(self) -> bool:
        return not any(self.drafting)


class DrafterMethod(Method):
    """A method with a drafter."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        super().__init__(target)
        self.drafter = drafter

    def join(self, row: Row) -> None:
        self.drafter.join(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        cache = self.drafter.cache
        cache.copy(source, slot, min(length, cache.lengths[source]))

    def plan(self, rows: list[Row], depth: int, expander: TreeExpander) -> Plan:
        """Draft trees of at most `depth` levels, fewer if a row has fewer tokens left."""
        depths = [max(0, min(depth, row.remaining_tokens - 1)) for row in rows]
        return Plan(rows, self.drafter.grow(rows, depths, expander))

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        for row, one in zip(plan.rows, accepted, strict=True):
            self.drafter.commit(row, one.path)


class DraftModelMethod(DrafterMethod):
    """A method with a draft model; `draft` names its checkpoint."""

    def __init__(self, target: Target, load_model: LoadModel, draft: str) -> None:
        network, vocabulary = load_model(draft), target.vocabulary
        if network.config.vocab_size < vocabulary:
            raise ValueError(
                f"the draft model knows {network.config.vocab_size} tokens, the target {vocabulary}"
            )
        slots, max_len = target.cache.slots, target.max_len
        model = Target(network, slots=slots, max_len=max_len, vocabulary=vocabulary)
        super().__init__(target, Drafter(model))

    def pause_with(self, serve: Callable[[], None]) -> None:
        self.drafter.pause = serve
