"""One problem under construction: its numbers, its words, the steps worked out so far."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from workers.training import wordings as w


@dataclass(frozen=True, slots=True)
class Fact:
    """One step: `expression` (such as "37*6") has this `value`.

    `left` is what an equation has on its left ("3x"), `noun` what is counted ("pens").
    """

    expression: str
    value: int
    left: str = ""
    noun: str = ""

    @property
    def equation(self) -> str:
        left = f"{self.left}=" if self.left else ""
        return f"{left}{self.expression}={self.value}"


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    answer: str
    family: str
    level: int
    key: str
    facts: tuple[Fact, ...]


class Sketch:
    """The dice of one problem, and the steps worked out so far."""

    def __init__(self, rng: random.Random, level: int, new_wordings: bool, training: bool) -> None:
        self.rng, self.level = rng, level
        self.new_wordings, self.training = new_wordings, training
        self.facts: list[Fact] = []

    def words(self, wordings: Sequence[str]) -> str:
        """One wording: never a kept-out one in training, only those when new ones are asked."""
        known, new = wordings[: -w.KEPT_OUT], wordings[-w.KEPT_OUT :]
        return self.rng.choice(new if self.new_wordings else known)

    def between(self, *ranges: tuple[int, int]) -> int:
        """A number from the range of this level."""
        return self.rng.randint(*ranges[min(self.level, len(ranges)) - 1])

    def work(self, a: int, operation: str, b: int, left: str = "", noun: str = "") -> int:
        """Work out a ∘ b in steps small enough to do in the head; returns the value."""
        value = apply(a, operation, b)
        if operation == "*" and min(a, b) > 9 and a % 10 and b % 10:
            ones = b % 10
            first, second = self.work(a, "*", b - ones), self.work(a, "*", ones)
            return self.work(first, "+", second, left, noun)
        if operation == "*" and a > 99 and a % 100 and b < 10:
            rest = a % 100
            first, second = self.work(a - rest, "*", b), self.work(rest, "*", b)
            return self.work(first, "+", second, left, noun)
        if operation == "/" and value > 99 and value % 100:
            rest = value % 100 * b
            first, second = self.work(a - rest, "/", b), self.work(rest, "/", b)
            return self.work(first, "+", second, left, noun)
        self.facts.append(Fact(f"{a}{operation}{b}", value, left, noun))
        return value

    def problem(self, family: str, question: str, key: str) -> Problem | None:
        """The finished problem; None when a number on the way is too large or below zero."""
        if any(not 0 <= fact.value <= 9999 for fact in self.facts) or len(self.facts) > 8:
            return None
        return Problem(
            self._style(question), str(self.facts[-1].value), family, self.level, key,
            tuple(self.facts),
        )  # fmt: skip

    def _style(self, question: str) -> str:
        """Small differences between people: capitals, a missing full stop."""
        dice = self.rng.random()
        if dice < 0.08:
            question = question.lower()
        elif dice < 0.12 and question.endswith((".", "?")):
            question = question[:-1]
        return question


def apply(a: int, operation: str, b: int) -> int:
    """a ∘ b for one of + - * / (exact)."""
    if operation == "+":
        return a + b
    if operation == "-":
        return a - b
    return a * b if operation == "*" else a // b
