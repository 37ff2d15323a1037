"""Generated problems whose every reasoning step can be checked.

A problem is a question, an integer answer and the reference steps, each one arithmetic fact. Its
`key` is the normalised numbers-and-operations expression, the same for every wording; the key's
hash decides once and for all which part it belongs to: one fifth is held out, one fifth is for
development, the rest is for training (`part_of`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from workers.models import wordings as w

Part = Literal["train", "dev", "heldout"]
LEVELS = (1, 2, 3, 4, 5)


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


def part_of(key: str) -> Part:
    """The part a key belongs to, for ever: crc32 of the key modulo 5."""
    fifth = zlib.crc32(key.encode()) % 5
    return "heldout" if fifth == 0 else "dev" if fifth == 1 else "train"


def draw(
    part: Part, seed: int, count: int, *, new_wordings: bool = False, family: str | None = None
) -> list[Problem]:
    """`count` distinct problems of one part, families and levels in turn.

    `new_wordings` uses only the wordings kept out of training.
    """
    problems: list[Problem] = []
    seen: set[str] = set()
    for problem in stream(part, seed, new_wordings=new_wordings, family=family):
        if problem.question not in seen:
            seen.add(problem.question)
            problems.append(problem)
            if len(problems) == count:
                return problems
    raise AssertionError("the stream of problems never ends")


def stream(
    part: Part, seed: int, *, new_wordings: bool = False, family: str | None = None
) -> Iterator[Problem]:
    """An endless, reproducible stream of problems of one part."""
    rng = random.Random(f"{part}/{seed}")
    names = [family] if family else sorted(FAMILIES)
    turn = 0
    while True:
        name, level = names[turn % len(names)], LEVELS[turn // len(names) % len(LEVELS)]
        turn += 1
        while True:
            problem = FAMILIES[name](_Draft(rng, level, new_wordings, part == "train"))
            if problem is not None and part_of(problem.key) == part:
                break
        yield problem


class _Draft:
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


def _sorted_key(operation: str, numbers: Sequence[int]) -> str:
    """Sums and products do not depend on the order, so neither do their keys."""
    return operation.join(map(str, sorted(numbers)))


def _spell(draft: _Draft, expression: str) -> str:
    """The same expression as people type it: other signs, other spaces."""
    rng = draft.rng
    if rng.random() < 0.25:
        expression = expression.replace("*", rng.choice("×x")).replace("/", "÷")
    if rng.random() < 0.5:
        for sign in "+-*/×x÷":
            expression = expression.replace(sign, f" {sign} ")
    return expression


def _pair(draft: _Draft, operation: str) -> tuple[int, int]:
    """Two operands of the level's size."""
    rng = draft.rng
    if operation == "+":
        high = (20, 99, 299, 999, 1999)[draft.level - 1]
        return rng.randint(2, high), rng.randint(2, high)
    if operation == "-":
        high = (20, 99, 299, 999, 1999)[draft.level - 1]
        a, b = rng.randint(2, high), rng.randint(1, high)
        return max(a, b), min(a, b)
    if operation == "*":
        a = draft.between((2, 9), (11, 49), (11, 99), (11, 49), (11, 99))
        b = draft.between((2, 9), (2, 9), (3, 9), (11, 29), (11, 99))
        if draft.level == 5 and rng.random() < 0.5:
            a, b = rng.randint(101, 499), rng.randint(2, 9)
        return (a, b) if a > 99 or rng.random() < 0.7 else (b, a)
    b = draft.between((2, 9), (2, 9), (3, 9), (3, 12), (3, 9))
    return b * draft.between((2, 10), (5, 20), (11, 49), (11, 99), (101, 399)), b


def _arithmetic(draft: _Draft) -> Problem | None:
    operation = draft.rng.choice("+-*/")
    a, b = _pair(draft, operation)
    key = _sorted_key(operation, (a, b)) if operation in "+*" else f"{a}{operation}{b}"
    if draft.rng.random() < 0.5:
        question = draft.words(w.EXPRESSION).format(e=_spell(draft, f"{a}{operation}{b}"))
    else:
        question = draft.words(w.IN_WORDS[operation]).format(a=a, b=b)
    if operation == "*" and a < b:
        a, b = b, a  # the larger number is the one that is taken apart
    draft.work(a, operation, b)
    return draft.problem("arithmetic", question, key)


def _chain(draft: _Draft) -> Problem | None:
    """Two to four operations with the usual precedence, parentheses from level 3."""
    rng = draft.rng
    small, medium = (
        draft.between((2, 9), (2, 12), (2, 19), (3, 49), (3, 99)),
        draft.between((2, 20), (5, 60), (5, 99), (10, 199), (10, 499)),
    )
    digit, other = rng.randint(2, 9), draft.between((2, 20), (2, 50), (2, 99), (5, 199), (5, 399))
    shape = rng.randrange(3 if draft.level < 3 else 8)
    if shape == 0:  # a*b±c
        operation = rng.choice("+-")
        expression = f"{small}*{digit}{operation}{other}"
        draft.work(draft.work(small, "*", digit), operation, other)
    elif shape == 1:  # a±b*c
        operation = rng.choice("+-")
        expression = f"{medium}{operation}{small}*{digit}"
        draft.work(medium, operation, draft.work(small, "*", digit))
    elif shape == 2:  # a±b±c
        first, second = rng.choice("+-"), rng.choice("+-")
        expression = f"{medium}{first}{small}{second}{other}"
        draft.work(draft.work(medium, first, small), second, other)
    elif shape == 3:  # (a±b)*c
        operation = rng.choice("+-")
        expression = f"({medium}{operation}{small})*{digit}"
        draft.work(draft.work(medium, operation, small), "*", digit)
    elif shape == 4:  # a*b+c*d
        operation, last = rng.choice("+-"), rng.randint(2, 9)
        expression = f"{medium}*{digit}{operation}{small}*{last}"
        first_product = draft.work(medium, "*", digit)
        draft.work(first_product, operation, draft.work(small, "*", last))
    elif shape == 5:  # (a+b)/c, exact
        total = digit * other
        if total <= small:
            return None
        expression = f"({total - small}+{small})/{digit}"
        draft.work(draft.work(total - small, "+", small), "/", digit)
    elif shape == 6:  # a/b±c
        operation = rng.choice("+-")
        expression = f"{digit * other}/{digit}{operation}{small}"
        draft.work(draft.work(digit * other, "/", digit), operation, small)
    else:  # a*b with two digits each, then ±c
        a, b = rng.randint(11, 99), rng.randint(11, 29 if draft.level < 5 else 99)
        operation = rng.choice("+-")
        expression = f"{a}*{b}{operation}{small}"
        draft.work(draft.work(a, "*", b), operation, small)
    question = draft.words(w.EXPRESSION).format(e=_spell(draft, expression))
    return draft.problem("chain", question, expression)


def _remainder(draft: _Draft) -> Problem | None:
    a = draft.between((5, 40), (20, 80), (30, 99), (50, 250), (100, 600))
    b = draft.between((2, 5), (3, 9), (3, 9), (3, 9), (3, 12))
    if a < b:
        return None
    product = draft.work(b, "*", a // b)
    draft.work(a, "-", product)
    question = draft.words(w.REMAINDER).format(a=a, b=b)
    return draft.problem("remainder", question, f"{a}%{b}")


def _sum(draft: _Draft) -> Problem | None:
    count = draft.between((3, 3), (3, 4), (3, 5), (4, 6), (5, 7))
    high = (12, 40, 99, 99, 199)[draft.level - 1]
    numbers = [draft.rng.randint(2, high) for _ in range(count)]
    total = numbers[0]
    for number in numbers[1:]:
        total = draft.work(total, "+", number)
    if draft.rng.random() < 0.3:
        question = draft.words(w.EXPRESSION).format(e=_spell(draft, "+".join(map(str, numbers))))
    else:
        listed = ", ".join(map(str, numbers))
        if draft.rng.random() < 0.5:
            listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
        question = draft.words(w.SUM).format(l=listed)
    return draft.problem("sum", question, _sorted_key("+", numbers))


def _one_unknown(draft: _Draft) -> Problem | None:
    x = draft.between((1, 9), (2, 12), (2, 30), (5, 60), (11, 99))
    m = draft.rng.randint(2, 9)
    b = draft.between((1, 20), (2, 50), (2, 99), (5, 199), (5, 499))
    sign = "+" if draft.rng.random() < 0.6 else "-"
    c = m * x + b if sign == "+" else m * x - b
    if c <= 0:
        return None
    if sign == "+" and draft.rng.random() < 0.35:
        question = draft.words(w.ONE_UNKNOWN_IN_WORDS).format(m=m, b=b, c=c)
    else:
        equation = draft.rng.choice(
            [f"{m}x {sign} {b} = {c}", f"{m}x{sign}{b}={c}", f"{m}*x {sign} {b} = {c}"]
        )
        question = draft.words(w.ONE_UNKNOWN).format(q=equation)
    product = draft.work(c, "-" if sign == "+" else "+", b, left=f"{m}x")
    draft.work(product, "/", m, left="x")
    return draft.problem("one-unknown", question, f"{m}x{sign}{b}={c}")


def _two_unknowns(draft: _Draft) -> Problem | None:
    y = draft.between((1, 10), (2, 25), (5, 60), (10, 150), (10, 400))
    d = draft.between((1, 9), (1, 20), (1, 50), (2, 99), (2, 300))
    wanted = draft.rng.choice("xy")
    total = y + d + y
    double = draft.work(total, "+" if wanted == "x" else "-", d, left=f"2{wanted}")
    draft.work(double, "/", 2, left=wanted)
    question = draft.words(w.TWO_UNKNOWNS).format(s=total, d=d, w=wanted)
    return draft.problem("two-unknowns", question, f"x+y={total},x-y={d},{wanted}")


def _operate(draft: _Draft) -> Problem | None:
    """Start with a number, then two to four operations one after the other."""
    rng = draft.rng
    value = draft.between((2, 12), (5, 40), (10, 99), (10, 199), (20, 499))
    sentences, key = [draft.words(w.START).format(n=value)], str(value)
    for _ in range(draft.between((2, 2), (2, 3), (3, 3), (3, 4), (4, 4))):
        divisors = [n for n in range(2, 10) if value % n == 0 and value > n]
        operation = rng.choice("+-*" + ("/" if divisors and value < 900 else ""))
        if operation == "*" and value > 199:
            operation = "+"
        if operation in "+-":
            n = min(draft.between((1, 12), (2, 40), (2, 99), (5, 199), (5, 499)), max(1, value - 1))
        else:
            n = rng.choice(divisors) if operation == "/" else rng.randint(2, 9)
        sentences.append(draft.words(w.OPERATE[operation]).format(n=n))
        value, key = draft.work(value, operation, n), f"({key}){operation}{n}"
    sentences.append(draft.words(w.OPERATE_END))
    return draft.problem("operate", " ".join(sentences), key)


_NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
                 "ten", "eleven", "twelve"]  # fmt: skip


class _Story:
    """The people and things of one word problem."""

    def __init__(self, draft: _Draft) -> None:
        self.draft = draft
        self.names = dict(zip("NM", draft.rng.sample(w.NAMES, 2), strict=True))
        self.things = dict(zip("ij", draft.rng.sample(w.ITEMS, 2), strict=True))
        self.container = draft.rng.choice(w.CONTAINERS)
        self.in_words = draft.rng.random() < 0.12

    def tell(self, wordings: Sequence[str], **numbers: int) -> str:
        shown = {name: self._number(n) for name, n in numbers.items()}
        text = self.draft.words(wordings).format(
            **shown, **self.names, **self.things, c=self.container
        )
        return text[0].upper() + text[1:]

    def _number(self, n: int) -> str:
        return _NUMBER_WORDS[n] if self.in_words and n < len(_NUMBER_WORDS) else str(n)


def _have(draft: _Draft, story: _Story) -> tuple[str, str, int]:
    """How a story begins: a sentence, its expression, its value."""
    if draft.rng.random() < 0.5:
        a = draft.between((3, 20), (10, 60), (10, 99), (50, 299), (100, 799))
        return story.tell(w.HAS, a=a), str(a), a
    a = draft.between((2, 5), (2, 9), (3, 9), (4, 12), (5, 24))
    b = draft.between((2, 9), (3, 15), (5, 30), (8, 60), (11, 99))
    value = draft.work(max(a, b), "*", min(a, b), noun=story.things["i"])
    return story.tell(w.GROUPS, a=a, b=b), _sorted_key("*", (a, b)), value


def _change(draft: _Draft, story: _Story, key: str, value: int, sign: str) -> tuple[str, str, int]:
    n = draft.between((1, 9), (2, 30), (3, 60), (5, 150), (5, 300))
    n = min(n, value - 1) if sign == "-" else n
    sentence = story.tell(w.GAIN if sign == "+" else w.LOSS, a=n)
    return sentence, f"{key}{sign}{n}", draft.work(value, sign, n, noun=story.things["i"])


def _word_changes(draft: _Draft, last: str, family: str, ending: Sequence[str]) -> Problem | None:
    story = _Story(draft)
    sentence, key, value = _have(draft, story)
    sentences = [sentence]
    more = draft.rng.randint(0, (0, 0, 1, 2, 2)[draft.level - 1])
    for sign in [draft.rng.choice("+-") for _ in range(more)] + [last]:
        if value < 2:
            return None
        sentence, key, value = _change(draft, story, key, value, sign)
        sentences.append(sentence)
    return draft.problem(family, " ".join([*sentences, story.tell(ending)]), key)


def _word_total(draft: _Draft) -> Problem | None:
    story = _Story(draft)
    kind = draft.rng.randrange(4)
    if kind == 0:
        return _word_changes(draft, "+", "word-total", w.NOW)
    if kind == 1:
        a, b = _pair(draft, "+")
        draft.work(a, "+", b, noun=story.things["i"])
        return draft.problem(
            "word-total", story.tell(w.TWO_PEOPLE, a=a, b=b), _sorted_key("+", (a, b))
        )
    if kind == 2:
        a = draft.between((2, 12), (5, 40), (10, 99), (20, 299), (50, 499))
        b = draft.between((1, 9), (2, 20), (5, 60), (10, 99), (20, 299))
        draft.work(a, "+", draft.work(a, "+", b))
        return draft.problem("word-total", story.tell(w.MORE_THAN, a=a, b=b), f"{a}+({a}+{b})")
    a, b = draft.between((2, 5), (2, 9), (2, 9), (3, 12), (3, 19)), draft.rng.randint(2, 9)
    p, r = draft.between((2, 5), (2, 9), (3, 20), (3, 40), (5, 60)), draft.rng.randint(2, 9)
    first = draft.work(max(a, p), "*", min(a, p))
    draft.work(first, "+", draft.work(b, "*", r))
    return draft.problem("word-total", story.tell(w.PRICE, a=a, b=b, p=p, r=r), f"{a}*{p}+{b}*{r}")


def _word_left(draft: _Draft) -> Problem | None:
    return _word_changes(draft, "-", "word-left", w.LEFT)


def _word_share(draft: _Draft) -> Problem | None:
    story = _Story(draft)
    if draft.rng.random() < 0.25:
        a, b = _pair(draft, "*")
        draft.work(max(a, b), "*", min(a, b))
        return draft.problem("word-share", story.tell(w.RATE, a=a, b=b), _sorted_key("*", (a, b)))
    sentence, key, value = _have(draft, story)
    sentences = [sentence]
    for _ in range(draft.rng.randint(0, (0, 1, 1, 2, 2)[draft.level - 1])):
        if value < 2:
            return None
        sentence, key, value = _change(draft, story, key, value, draft.rng.choice("+-"))
        sentences.append(sentence)
    divisors = [k for k in range(2, 13) if value % k == 0 and value > k]
    if not divisors:
        return None
    k = draft.rng.choice(divisors)
    draft.work(value, "/", k, noun=story.things["i"])
    return draft.problem(
        "word-share", " ".join([*sentences, story.tell(w.SHARE, k=k)]), f"({key})/{k}"
    )


FAMILIES: dict[str, Callable[[_Draft], Problem | None]] = {
    "arithmetic": _arithmetic,
    "chain": _chain,
    "remainder": _remainder,
    "sum": _sum,
    "one-unknown": _one_unknown,
    "two-unknowns": _two_unknowns,
    "operate": _operate,
    "word-total": _word_total,
    "word-left": _word_left,
    "word-share": _word_share,
}
