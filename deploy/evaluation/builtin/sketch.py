"""One problem under construction: its numbers, its words, the steps worked out so far."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.evaluation.builtin.wordings import Wordings


@dataclass(frozen=True, slots=True)
class Fact:
    """One step: `expression` (such as "37*6") has this `value`.

    `left` is the left side of an equation ("3x"), `noun` the things that are counted ("pens").
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
class GeneratedProblem:
    """A question, its answer, and the steps from one to the other.

    `key`: the normalised expression, the same for every wording; it decides the part.
    """

    question: str
    answer: str
    family: str
    level: int
    key: str
    facts: tuple[Fact, ...]


class Sketch:
    """The random generator of one problem, and the steps worked out so far."""

    def __init__(self, rng: random.Random, level: int) -> None:
        self.rng, self.level = rng, level
        self.facts: list[Fact] = []

    def words(self, wordings: Wordings) -> str:
        """Draw a wording."""
        return self.rng.choice(wordings)

    def between(self, *ranges: tuple[int, int]) -> int:
        """Draw a number from the range of this level."""
        return self.rng.randint(*ranges[min(self.level, len(ranges)) - 1])

    def work(self, a: int, operation: str, b: int, left: str = "", noun: str = "") -> int:
        """Work out a ∘ b in steps of mental arithmetic; return the value."""
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

    def problem(self, family: str, question: str, key: str) -> GeneratedProblem | None:
        """Return the finished problem; None with too many steps, or a number out of range."""
        if any(not 0 <= fact.value <= 9999 for fact in self.facts) or len(self.facts) > 8:
            return None
        return GeneratedProblem(
            self._style(question), str(self.facts[-1].value), family, self.level, key,
            tuple(self.facts),
        )  # fmt: skip

    def _style(self, question: str) -> str:
        """Vary the writing as people do: capitals, a missing full stop."""
        dice = self.rng.random()
        if dice < 0.08:
            question = question.lower()
        elif dice < 0.12 and question.endswith((".", "?")):
            question = question[:-1]
        return question


def apply(a: int, operation: str, b: int) -> int:
    """Return a ∘ b for one of + - * / (exact)."""
    if operation == "+":
        return a + b
    if operation == "-":
        return a - b
    return a * b if operation == "*" else a // b


def sorted_key(operation: str, numbers: Sequence[int]) -> str:
    """Return the key of a sum or product: equal for every order of its numbers."""
    return operation.join(map(str, sorted(numbers)))


def operands(sketch: Sketch, operation: str) -> tuple[int, int]:
    """Draw two operands of the level's size."""
    rng = sketch.rng
    if operation == "+":
        high = (20, 99, 299, 999, 1999)[sketch.level - 1]
        return rng.randint(2, high), rng.randint(2, high)
    if operation == "-":
        high = (20, 99, 299, 999, 1999)[sketch.level - 1]
        a, b = rng.randint(2, high), rng.randint(1, high)
        return max(a, b), min(a, b)
    if operation == "*":
        a = sketch.between((2, 9), (11, 49), (11, 99), (11, 49), (11, 99))
        b = sketch.between((2, 9), (2, 9), (3, 9), (11, 29), (11, 99))
        if sketch.level == 5 and rng.random() < 0.5:
            a, b = rng.randint(101, 499), rng.randint(2, 9)
        return (a, b) if a > 99 or rng.random() < 0.7 else (b, a)
    b = sketch.between((2, 9), (2, 9), (3, 9), (3, 12), (3, 9))
    if sketch.level > 3 and rng.random() < 0.25:
        return (b := rng.randint(11, 30)) * sketch.between(
            (2, 9), (2, 9), (2, 9), (2, 9), (2, 19)
        ), b
    return b * sketch.between((2, 10), (5, 20), (11, 49), (11, 99), (101, 399)), b


def words_below(rng: random.Random) -> int:
    """Draw the number below which numbers are written in words; mostly 0."""
    dice = rng.random()
    return 0 if dice < 0.85 else 13 if dice < 0.95 else 100


_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
         "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
         "nineteen"]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(n: int) -> str:
    """Return a number below 100 in words."""
    if n < 20:
        return _ONES[n]
    tens, ones = _TENS[n // 10 - 2], n % 10
    return f"{tens}-{_ONES[ones]}" if ones else tens
