"""The fastest method and draft length, found by timing the deployment's own rounds.

The best draft length depends on acceptance and on the costs of a draft and of a target pass
(Leviathan et al. 2211.17192, section 3.4), and these on how many rows share the passes: in a large
batch speculation becomes a loss. So for every batch size (in powers of two) each candidate is tried
for a few rounds of real calls, at its shortest draft and, if that is not far too slow, at its
longest. From then on, every round gives an estimate of the tokens and of the time of a round of any
length. Rows decode without drafts if no candidate is faster. A candidate that was not measured for
long is tried again.

Lossless, because every candidate is, and because the choice depends only on rounds that have ended,
never on a random number that is still to decide a token. A sampled row keeps its distribution but
not its draws: which method draws a token depends on the clock.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row
from workers.speculation.drafter import LoadModel
from workers.speculation.method import Method
from workers.speculation.parameters import at_least

TRIAL, FEWEST = 8, 3
"""Drafts of a trial at each length, and its rounds at least: many rows show acceptance sooner, and
lose more by a draft that does not pay."""
STALE = 1000  # rounds of a batch size after which a candidate is tried again
HOPELESS = 0.7
"""A candidate whose shortest draft has less than this share of the best speed gets no long ones."""
MARGIN = 1.05  # least gain for a change, which costs the prefill of the new drafter
MEMORY = 0.99  # weight of earlier rounds at each new one

Choice = tuple[int, int]
"""(index of a candidate, its draft length; 0 if it has none to choose)."""
Draft = tuple[int, int]
"""(greatest possible depth of a row's draft, number of accepted tokens).

A draft that ended early counts as rejected at the next token.
"""


class Chooser:
    """Finds the candidate and draft length with most tokens a second at one batch size.

    `lengths`: each candidate's draft lengths, ascending; `(0,)` if it has none to choose.
    Candidate 0 is plain decoding. `rows`: of a batch.
    """

    def __init__(self, lengths: Sequence[Sequence[int]], rows: int = 1) -> None:
        self._rounds = max(FEWEST, TRIAL // rows)
        self.known = [_Known(one) for one in lengths]
        self.due = [trial for number in range(len(lengths)) for trial in self._trial(number)]
        self.now: Choice = (0, lengths[0][0])

    def _trial(self, number: int) -> list[Choice]:
        lengths = self.known[number].lengths
        ends = dict.fromkeys((lengths[0], lengths[-1]))
        return [(number, length) for length in ends for _ in range(self._rounds)]

    def choose(self) -> Choice:
        return self.due[0] if self.due else self.now

    def learn(self, choice: Choice, seconds: float, drafts: Sequence[Draft]) -> None:
        """Learn from a round."""
        number, length = choice
        self.known[number].learn(length, seconds, drafts)
        for other, known in enumerate(self.known):
            known.age = 0 if other == number else known.age + 1
        if self.due and self.due[0] == choice:
            self.due.pop(0)
            slow = self._speed(choice) < HOPELESS * self._speed(self.now)
            if slow and choice not in self.due:  # its trial is over
                self.due = [trial for trial in self.due if trial[0] != number]
        if self.due:
            return
        choices = [(n, one) for n, known in enumerate(self.known) for one in known.lengths]
        speeds = {one: self._speed(one) for one in choices}
        best = max(speeds, key=speeds.__getitem__)
        stays = best[0] == self.now[0]  # another length of the same drafter costs nothing
        if stays or speeds[best] > MARGIN * speeds[self.now]:
            self.now = best
        oldest = max(range(len(self.known)), key=lambda n: self.known[n].age)
        if self.known[oldest].age >= STALE:
            self.known[oldest] = _Known(self.known[oldest].lengths)
            self.due = self._trial(oldest)

    def _speed(self, choice: Choice) -> float:
        number, length = choice
        return self.known[number].speed(length)


@dataclass(slots=True)
class _Known:
    """Running acceptance and times of a candidate."""

    lengths: Sequence[int]
    age: int = 0
    rounds: dict[int, int] = field(default_factory=dict)  # number measured, by draft length
    seconds: dict[int, float] = field(default_factory=dict)  # running mean, by draft length
    depths: list[list[float]] = field(default_factory=list)  # verified and accepted, by depth

    def learn(self, length: int, seconds: float, drafts: Sequence[Draft]) -> None:
        before = self.seconds.get(length, seconds)
        self.rounds[length] = count = self.rounds.get(length, 0) + 1
        # An outlier, caused by other work of the machine, counts at most fourfold.
        news = min(seconds, 4 * before) - before
        self.seconds[length] = before + max(1 - MEMORY, 1 / count) * news
        self.depths = [[MEMORY * tried, MEMORY * taken] for tried, taken in self.depths]
        for possible, accepted in drafts:
            self.depths += [[0.0, 0.0] for _ in range(possible - len(self.depths))]
            for depth in range(min(possible, accepted + 1)):
                self.depths[depth][0] += 1
                self.depths[depth][1] += depth < accepted

    def tokens(self, length: int) -> float:
        """Return a row's expected tokens in a round; unknown depths count as the last known."""
        if not self.depths or not self.depths[0][0]:
            return 1.0
        total = below = rate = 1.0
        for depth in range(length or len(self.depths)):
            if depth < len(self.depths) and self.depths[depth][0] > 0:
                rate = self.depths[depth][1] / self.depths[depth][0]
            below *= rate
            total += below
        return total

    def time(self, length: int) -> float:
        """Return the seconds of a round, by a line through the two nearest measured lengths."""
        if length in self.seconds:
            return self.seconds[length]
        near = sorted(self.seconds, key=lambda known: abs(known - length))[:2]
        if not near:
            return inf
        if len(near) < 2:  # at most in proportion to what the target reads
            return self.seconds[near[0]] * max(1.0, (1 + length) / (1 + near[0]))
        low, high = sorted(near)
        slope = max(0.0, (self.seconds[high] - self.seconds[low]) / (high - low))
        return self.seconds[low] + slope * (length - low)

    def speed(self, length: int) -> float:
        return self.tokens(length) / self.time(length)


class Auto(Method):
    """Chooses among lossless methods for every round.

    Args:
        candidates: names of methods, or `{"method": NAME, **parameters}`, beside plain decoding.
            None: lookup, and with a draft model chains and stochastic beams.
        draft: the draft model of candidates that name none.
        lengths: draft lengths to choose from, for candidates with a `gamma`.
    """

    def __init__(
        self,
        target: Target,
        load_model: LoadModel,
        *,
        draft: str | None = None,
        candidates: Sequence[str | Mapping[str, Any]] | None = None,
        lengths: Sequence[int] = (1, 2, 3, 4, 6, 8),
    ) -> None:
        super().__init__(target)
        if not isinstance(lengths, list | tuple) or not lengths:
            raise ValueError(f"lengths must be a list of whole numbers, not {lengths!r}")
        lengths = sorted({at_least("lengths", length, 1) for length in lengths})
        if candidates is None:
            candidates = ["lookup", *(["chain", "recursive-s"] if draft is not None else [])]
        if not isinstance(candidates, list | tuple) or not candidates:
            raise ValueError(f"candidates must be a list of methods, not {candidates!r}")
        built = (self._build(one, load_model, draft, lengths) for one in candidates)
        self.methods = [Method(target), *built]
        choices = [lengths if hasattr(method, "gamma") else [0] for method in self.methods]
        self._choices = choices
        self.choosers: dict[int, Chooser] = {}  # by batch size
        self.clock: Callable[[], float] = time.perf_counter
        self.choice: Choice = (0, 0)
        self._with: dict[int, int] = {}  # candidate that each live row has joined, by slot
        self._begun = self._paused = 0.0
        self._chooser = Chooser(choices)  # of this round
        self._drafting: set[int] = set()  # slots of its rows; others join while it drafts
        self._counts = dict.fromkeys(("plain_rounds", "drafted_rounds", "switches"), 0)

    def _build(
        self,
        candidate: str | Mapping[str, Any],
        load_model: LoadModel,
        draft: str | None,
        lengths: Sequence[int],
    ) -> Method:
        parameters: dict[str, Any] = {} if isinstance(candidate, str) else dict(candidate)
        name = candidate if isinstance(candidate, str) else str(parameters.pop("method", None))
        if name not in self.registry or name == "auto":
            others = ", ".join(other for other in self.registry if other != "auto")
            raise ValueError(f"no candidate {name!r}; there are {others}")
        accepted = inspect.signature(self.registry[name]).parameters
        if "draft" in accepted and draft is not None:
            parameters.setdefault("draft", draft)
        if "gamma" in accepted:
            if "gamma" in parameters:
                raise ValueError(f"{name}: auto chooses gamma, from lengths")
            parameters["gamma"] = lengths[-1]
        method = self.registry[name](self.target, load_model, **parameters)
        if not method.lossless:
            raise ValueError(f"{name} is lossy; auto chooses among lossless methods")
        return method

    @property
    def current(self) -> Method:
        return self.methods[self.choice[0]]

    @property
    def converged(self) -> bool:
        """Whether all trials are over."""
        return bool(self.choosers) and not any(one.due for one in self.choosers.values())

    def stats(self) -> dict[str, int]:
        return dict(self._counts)

    def join(self, row: Row) -> None:
        self._with[row.slot] = self.choice[0]
        self.current.join(row)

    def leave(self, row: Row) -> None:
        number = self._with.pop(row.slot, None)  # None: it ended with its first token
        if number is not None:
            self.methods[number].leave(row)

    def copy(self, source: int, slot: int, length: int) -> None:
        for method in self.methods:
            method.copy(source, slot, length)

    def pause_with(self, serve: Callable[[], None]) -> None:
        def timed() -> None:
            began = self.clock()
            serve()
            self._paused += self.clock() - began

        for method in self.methods:
            method.pause_with(timed)

    def draft(self, rows: list[Row]) -> Plan:
        size = (len(rows) - 1).bit_length()
        if size not in self.choosers:
            self.choosers[size] = Chooser(self._choices, 2**size)
        self._chooser = self.choosers[size]
        self._drafting = {row.slot for row in rows}
        before, self.choice = self.choice, self._chooser.choose()
        number, length = self.choice
        self._counts["switches"] += number != before[0]
        if length:
            self.current.gamma = length  # type: ignore[attr-defined]
        for row in rows:
            if self._with[row.slot] != number:
                # As for a new live row, all its tokens but the newest are cached.
                self.methods[self._with[row.slot]].leave(row)
                self._with[row.slot] = number
                self.current.join(row)
        self._begun, self._paused = self.clock(), 0.0  # the cost of a change does not count
        return self.current.draft(rows)

    def score(self, target: Target, plan: Plan) -> ModelOutput:
        return self.current.score(target, plan)

    def verify(self, plan: Plan, result: ModelOutput) -> list[Accepted]:
        return self.current.verify(plan, result)

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        self.current.commit(plan, accepted, scores)
        seconds = self.clock() - self._begun - self._paused
        number, length = self.choice
        self._counts["drafted_rounds" if number else "plain_rounds"] += len(plan.rows)
        drafts = [
            (
                # `remaining_tokens` lacks the new tokens, and the last of these is never a draft.
                min(length, row.remaining_tokens + len(one.tokens) - 1) if length else tree.depth,
                len(one.path) - 1,
            )
            for row, tree, one in zip(plan.rows, plan.trees, accepted, strict=True)
            if row.slot in self._drafting
        ]
        self._chooser.learn(self.choice, seconds, drafts)
