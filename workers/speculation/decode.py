"""The token loop: draft, verify in one target pass, walk, keep the accepted path.

`step` is one iteration over every live row, `join` and `leave` are called between iterations
(continuous batching). A row belongs to one method; rows of one method share its rounds. What comes
out of a row depends neither on its neighbours nor on their methods.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from orchestrator.types import Sampling
from workers.model.target import CHUNK, Result, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.method import Method


class Decoder:
    """A target, its methods and the live rows between them.

    Args:
        method: what decodes the rows that name none.
        named: the methods that a row may name.
    """

    def __init__(
        self, target: Target, method: Method, named: Mapping[str, Method] = MappingProxyType({})
    ) -> None:
        self.target, self.method, self.named = target, method, named
        self.methods = tuple(dict.fromkeys((method, *named.values())))
        self.rows: list[Row] = []  # by slot, so that neighbours in the cache are one view

    def step(self) -> list[tuple[Row, Accepted]]:
        """*** One iteration. *** Every row gains at least one token."""
        return [one for rows in self.parties() for one in self.round(rows)]

    def parties(self) -> list[list[Row]]:
        """The live rows, those of one method together."""
        parties: dict[Method, list[Row]] = {}
        for row in self.rows:
            parties.setdefault(self.method_of(row), []).append(row)
        return list(parties.values())

    @torch.inference_mode()
    def round(self, rows: list[Row]) -> list[tuple[Row, Accepted]]:
        """Draft, verify, walk, keep: for rows of one method."""
        method, cache = self.method_of(rows[0]), self.target.cache
        plan = method.draft(rows)
        result = method.verify(self.target, plan)
        walked = method.walk(plan, result)
        for row, accepted in zip(plan.rows, walked, strict=True):
            cache.keep(row.slot, accepted.path)
            row.ids.extend(accepted.tokens)
            row.room -= len(accepted.tokens)
        method.commit(plan, walked, result)
        return list(zip(plan.rows, walked, strict=True))

    @torch.inference_mode()
    def read(
        self, slot: int, ids: Sequence[int], *, last: int = 1, most: int = CHUNK
    ) -> Result | None:
        """Read one chunk of the part of `ids` that the slot lacks.

        Returns None while more is missing, and with the final chunk the logits of the last
        `last` tokens (which the caller must not have left in the cache).
        """
        missing = ids[self.target.cache.lengths[slot] :]
        most = max(most, last)
        if len(missing) > most:
            # The final chunk must hold all the tokens whose logits are wanted.
            self.target.read(slot, missing[: min(most, len(missing) - last)], last=0)
            return None
        return self.target.read(slot, missing, last=last)

    @torch.inference_mode()
    def join(self, row: Row, result: Result) -> Accepted:
        """Make a row live whose prompt has been read: draw its first token and go on from it."""
        plan = Plan([row], [Tree([row.ids[-1]], [-1])])
        method = self.method_of(row)
        accepted = Method.walk(method, plan, result)[0]
        row.ids.extend(accepted.tokens)
        row.room -= 1
        insort(self.rows, row, key=lambda other: other.slot)
        if row.room > 0:
            method.join(row)
        return accepted

    def leave(self, row: Row) -> None:
        """Free the row; its slot keeps what it holds for the next call with that prefix."""
        self.rows.remove(row)
        self.method_of(row).leave(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Start an idle slot with the first `length` tokens of another."""
        self.target.cache.copy(source, slot, length)
        for method in self.methods:
            method.copy(source, slot, length)

    def method_of(self, row: Row) -> Method:
        """What decodes the row."""
        return self.method if row.method is None else self.named[row.method]

    @property
    def lossless(self) -> bool:
        """Whether every row says what the target alone would say, whatever it names."""
        return all(method.lossless for method in self.methods)

    def stats(self) -> dict[str, int]:
        """The counters that methods have of their own; those of one name added up."""
        counts: dict[str, int] = {}
        for method in self.methods:
            for name, count in method.stats().items():
                counts[name] = counts.get(name, 0) + count
        return counts


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    *,
    sampling: Sampling | None = None,
    ends: Sequence[int] = (),
    methods: Sequence[str | None] = (),
) -> list[list[int]]:
    """Decode prompts to the end, as many at once as there are slots; `ends` are kept.

    For benchmarks, tests and training texts: one call, no neighbours that come and go. `methods`
    names one for each prompt; none: the decoder's default for all.
    """
    sampling = sampling or Sampling()
    outputs: list[list[int]] = [[] for _ in prompts]
    waiting, free = deque(enumerate(prompts)), list(range(decoder.target.cache.slots))
    owners: dict[int, int] = {}

    def take(row: Row, tokens: list[int]) -> None:
        output = outputs[owners[row.slot]]
        for token in tokens:
            output.append(token)
            if token in ends or len(output) == max_new:
                decoder.leave(row)
                insort(free, row.slot)
                return

    while waiting or decoder.rows:
        while waiting and free:
            number, prompt = waiting.popleft()
            slot = free.pop(0)
            owners[slot] = number
            method = methods[number] if methods else None
            seed = (sampling.seed or 0) + number
            row = Row(slot, list(prompt), sampling, seed, max_new, method)
            decoder.target.cache.claim(slot, row.ids, len(prompt) - 1)
            result = None
            while result is None:
                result = decoder.read(slot, row.ids)
            take(row, decoder.join(row, result).tokens)
        if decoder.rows:
            for row, accepted in decoder.step():
                take(row, accepted.tokens)
    return outputs
