"""Runs a draft model for the methods that use one, with its own cache per slot.

A draft grows level by level: one pass of the draft model reads the newest level of every row's
tree, and a `Spread` says which children its nodes get. Earlier levels lie in the cache, so
each node is read once; the last level is not read at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orchestrator.types import Sampling
from workers.model.rng import DRAFT, key, uniform
from workers.model.sampling import draw, gumbels, warp
from workers.model.target import SPARE, ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.method import Method

LoadModel = Callable[[str], Any]
"""From the name of a checkpoint to a model with the target's tokenizer, on its device.

Methods ask for what they need, several for the same: a loader keeps what it has loaded.
"""

Child = tuple[int, int]
"""(place of the parent in its level, token)."""

MOST_NODES = SPARE - 2  # a draft lags by two committed tokens at most


class Spread(ABC):
    """Which children the nodes of a level get; one object serves one round."""

    @abstractmethod
    def __call__(
        self, level: int, logits: Tensor, seats: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        """The children of one level.

        Args:
            level: depth of the nodes.
            logits: [rows, nodes, vocabulary] in float32; rows with fewer nodes are padded.
            seats: for each row, where the children of the last answer have come to stand in the
                level: equal ones share a node. The root stands at 0.

        Returns:
            For each row its children in the order of the draws, by parents that stand in the level;
            and the laws [rows, nodes, vocabulary] they were drawn from (None: all rows are greedy).
        """

    def ended(self) -> bool:
        """Whether no row is to have another level."""
        return False


class Drafter:
    """A draft model, wrapped as a `Target`, beside the one that verifies: slot for slot.

    Its cache may lag behind the committed tokens (by two after a fully accepted draft, by a
    prompt after a join); whatever is missing is read with the next draft.
    """

    def __init__(self, model: Target) -> None:
        self.model = model
        self.cache = self.model.cache
        self._read: dict[int, tuple[int, int]] = {}  # by slot: nodes before the tree, nodes read

    def join(self, row: Row) -> None:
        """Start from what the slot still holds and read the rest of the prompt."""
        prompt = row.ids[:-1]
        if self.cache.allocate(row.slot, row.ids, len(prompt)) < len(prompt):
            self.model.prefill(row.slot, prompt, num_logits=0)

    def grow(self, rows: Sequence[Row], depths: Sequence[int], spread: Spread) -> list[Tree]:
        """One tree per row, `depths[row]` levels below its newest token.

        Trees of sampled rows carry the laws their nodes were drawn from.
        """
        self._read = {}
        if max(depths) == 0:
            return [Tree([row.ids[-1]], [-1]) for row in rows]
        slots = [row.slot for row in rows]
        growing = [_Growing(row.ids[self.cache.lengths[row.slot] :]) for row in rows]
        grown = [one.tree for one in growing]
        skip, seats = [0] * len(rows), [[0] for _ in rows]
        for level in range(max(depths)):
            logits = self.model.forward(slots, grown, skip=skip).logits
            if level == 0:  # behind tokens that the cache lacked, the root is the last
                every = torch.arange(len(rows), device=logits.device)
                roots = torch.tensor([one.before for one in growing], device=logits.device)
                logits = logits[every, roots, None]
            skip = [len(tree) for tree in grown]
            children, laws = spread(level, logits.float(), seats)
            seats = [
                one.add(children[i], None if laws is None or rows[i].greedy else laws[i])
                for i, one in enumerate(growing)
            ]
            if spread.ended() or not any(seats):  # logits of NaN have no children
                break
        self._read = {
            slot: (one.before, read) for slot, one, read in zip(slots, growing, skip, strict=True)
        }
        return [one.cut(depth) for one, depth in zip(growing, depths, strict=True)]

    def commit(self, row: Row, path: Sequence[int]) -> None:
        """`row.ids` now ends with the accepted nodes and one more token: forget the others."""
        if row.slot in self._read:
            before, read = self._read[row.slot]
            kept = [before + node for node in path if before + node < read]
            self.cache.commit(row.slot, [*range(before), *kept])


class _Growing:
    """One row's tree, level by level.

    `tree` is what the draft model reads: `before` committed tokens that its cache lacks, then the
    root. `ends[l]` counts its nodes down to level l.
    """

    def __init__(self, feed: list[int]) -> None:
        self.tree, self.before, self.ends = Tree.chain(feed), len(feed) - 1, [len(feed)]
        self.laws: list[Tensor] = []  # of each level that has children, [nodes, vocabulary]
        self.drawn: list[list[list[int]]] = []  # likewise, the children of its nodes

    def add(self, children: list[Child], laws: Tensor | None) -> list[int]:
        """Hang a level below the last one, equal children as one; returns where each stands."""
        end = self.ends[-1]
        first = self.ends[-2] if len(self.ends) > 1 else self.before
        places: dict[Child, int] = {}
        seats = [places.setdefault(child, len(places)) for child in children]
        drawn: list[list[int]] = [[] for _ in range(end - first)]
        for (parent, _), seat in zip(children, seats, strict=True):
            drawn[parent].append(end + seat - self.before)
        self.drawn.append(drawn)
        if laws is not None and children:
            self.laws.append(laws[: end - first])
        self.tree.tokens.extend(token for _, token in places)
        self.tree.parents.extend(first + parent for parent, _ in places)
        self.ends.append(len(self.tree))
        return seats

    def cut(self, depth: int) -> Tree:
        """The tree from the root on, down to a depth."""
        depth = min(depth, len(self.ends) - 1)
        before, end = self.before, self.ends[depth]
        if depth == 0:
            return Tree(self.tree.tokens[before:end], [-1])
        drawn = [nodes for level in self.drawn[:depth] for nodes in level]
        return Tree(
            self.tree.tokens[before:end],
            [-1, *(parent - before for parent in self.tree.parents[before + 1 : end])],
            torch.cat(self.laws[:depth]) if self.laws else None,
            drawn + [[]] * (end - self.ends[depth - 1]),
        )


def law_of(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """The laws of a level under each row's sampling; greedy rows, which rank, at temperature 1."""
    return warp(logits, [Sampling(1.0) if row.greedy else row.sampling for row in rows])


def noise(rows: Sequence[Row], level: int, logits: Tensor) -> Tensor:
    """[rows, nodes, vocabulary] Gumbel noise of a level, zero for greedy rows."""
    nodes, vocabulary = logits.shape[1:]
    keys = [
        key(row.seed, len(row.ids), DRAFT, level, node) for row in rows for node in range(nodes)
    ]
    made = gumbels(keys, vocabulary, logits.device).view(logits.shape)
    made[[row.greedy for row in rows]] = 0
    return made


def listed(tokens: Tensor, seats: list[list[int]]) -> list[list[Child]]:
    """Children from [rows, nodes, children] tokens (-1: none), without those of padding."""
    counts = [max(mine, default=-1) + 1 for mine in seats]
    return [
        [
            (parent, token)
            for parent, mine in enumerate(nodes[:count])
            for token in mine
            if token >= 0
        ]
        for nodes, count in zip(tokens.tolist(), counts, strict=True)
    ]


class Independent(Spread):
    """`count` independent sequences a row; greedy rows, whose sequences are all equal, get one."""

    def __init__(self, rows: Sequence[Row], count: int = 1) -> None:
        self.rows, self.count = rows, count
        self.sampled = [i for i, row in enumerate(rows) if not row.greedy]

    def __call__(
        self, level: int, logits: Tensor, seats: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        if len(self.sampled) < len(self.rows):
            best = logits[:, 0].argmax(-1).tolist()
            children: list[list[Child]] = [[(0, token)] for token in best]
        else:
            children = [[] for _ in self.rows]
        if not self.sampled:
            return children, None
        laws = law_of(self.rows, logits)
        if level == 0:
            seats = [[0] * self.count for _ in self.rows]
        drawn = [(i, seat) for i in self.sampled for seat in seats[i]]
        numbers = [
            uniform(row.seed, len(row.ids), DRAFT, level, sequence)
            for row in map(self.rows.__getitem__, self.sampled)
            for sequence in range(self.count)
        ]
        owners, places = torch.tensor(drawn, device=laws.device).unbind(1)
        column = torch.tensor(numbers, dtype=torch.float64, device=laws.device)
        tokens = draw(laws[owners, places], column).tolist()
        for k, i in enumerate(self.sampled):
            mine = tokens[k * self.count : (k + 1) * self.count]
            children[i] = list(zip(seats[i], mine, strict=True))
        return children, laws


class Confident(Spread):
    """One sequence a row, which ends behind a token at whose place the top probability was under
    `threshold`.

    Whether one more is drafted is thus a function of the text so far, never of the token drawn
    there, and what is drafted has the law that speculative sampling takes for granted. A greedy
    row's confidence is that of temperature 1.
    """

    def __init__(self, rows: Sequence[Row], threshold: float) -> None:
        self.rows, self.threshold = rows, threshold
        self.sure = [True] * len(rows)

    def __call__(
        self, level: int, logits: Tensor, seats: list[list[int]]
    ) -> tuple[list[list[Child]], Tensor | None]:
        going = [i for i, sure in enumerate(self.sure) if sure]
        if len(going) < len(self.rows):
            logits = logits[going]
        chosen = [self.rows[i] for i in going]
        drawn, laws = Independent(chosen)(level, logits, [[0] for _ in going])
        sure = confidences(logits, laws)
        children: list[list[Child]] = [[] for _ in self.rows]
        for k, i in enumerate(going):
            children[i] = drawn[k]
            self.sure[i] = sure[k] >= self.threshold
        if laws is not None and len(going) < len(self.rows):
            everyones = laws.new_zeros(len(self.rows), *laws.shape[1:])
            everyones[going] = laws
            laws = everyones
        return children, laws

    def ended(self) -> bool:
        return not any(self.sure)


def confidences(logits: Tensor, laws: Tensor | None) -> list[float]:
    """Each row's top probability at its first node, of [rows, nodes, vocabulary] logits.

    `laws` are those that were drawn from; None: all rows are greedy, whose law is that of
    temperature 1.
    """
    top: list[float] = (logits.softmax(-1) if laws is None else laws).amax(-1)[:, 0].tolist()
    return top


def beside(target: Target, model: Any) -> Target:
    """A draft model with the target's slots; ValueError if it knows too few tokens."""
    if model.config.vocab_size < target.vocabulary:
        raise ValueError(
            f"the draft model knows {model.config.vocab_size} tokens, "
            f"the target {target.vocabulary}"
        )
    return Target(
        model, slots=target.cache.slots, max_len=target.max_len, vocabulary=target.vocabulary
    )


class Drafting(Method):
    """A method with a drafter."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        super().__init__(target)
        self.drafter = drafter

    def join(self, row: Row) -> None:
        self.drafter.join(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        cache = self.drafter.cache
        cache.copy(source, slot, min(length, cache.lengths[source]))

    def plan(self, rows: list[Row], depth: int, spread: Spread) -> Plan:
        """Trees of at most `depth` levels, and of no more than the room that is left."""
        depths = [max(0, min(depth, row.remaining_tokens - 1)) for row in rows]
        return Plan(rows, self.drafter.grow(rows, depths, spread))

    def commit(self, plan: Plan, accepted: Sequence[Accepted], result: ModelOutput) -> None:
        for row, one in zip(plan.rows, accepted, strict=True):
            self.drafter.commit(row, one.path)


class Drafted(Drafting):
    """A method with a draft model; `draft` names its checkpoint."""

    def __init__(self, target: Target, load_model: LoadModel, draft: str) -> None:
        super().__init__(target, Drafter(beside(target, load_model(draft))))


def at_least(name: str, value: int, least: int) -> int:
    """A checked parameter; ValueError names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def share(name: str, value: float) -> float:
    """A checked parameter from 0 to 1; ValueError names it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, not {value!r}")
    return value


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """ValueError for a parameter that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def branches(branching: Sequence[int]) -> tuple[int, ...]:
    """A checked number of children for each level of a tree; ValueError says what is wrong."""
    if not isinstance(branching, list | tuple):
        raise ValueError(f"branching must be a list of whole numbers, not {branching!r}")
    nodes, level = 1, 1
    for count in branching:
        level *= at_least("branching", count, 1)
        nodes += level
    small_enough(f"branching {list(branching)}", nodes)
    return tuple(branching)


def small_enough(what: str, nodes: int) -> None:
    """ValueError for parameters whose trees the cache has no room for."""
    if nodes > MOST_NODES:
        raise ValueError(f"{what}: a tree of {nodes} nodes, and at most {MOST_NODES} have room")
