"""The families of problems: each draws numbers of a level's size and works them out."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workers.training import wordings as w
from workers.training.sketch import Problem, Sketch


def _sorted_key(operation: str, numbers: Sequence[int]) -> str:
    """Sums and products do not depend on the order, so neither do their keys."""
    return operation.join(map(str, sorted(numbers)))


def _spell(sketch: Sketch, expression: str) -> str:
    """The same expression as people type it: other signs, other spaces."""
    rng = sketch.rng
    if rng.random() < 0.25:
        expression = expression.replace("*", rng.choice("×x")).replace("/", "÷")
    if rng.random() < 0.5:
        for sign in "+-*/×x÷":
            expression = expression.replace(sign, f" {sign} ")
    return expression


def _words_below(rng: random.Random) -> int:
    """Numbers below this are told in words; most people write digits."""
    dice = rng.random()
    return 0 if dice < 0.85 else 13 if dice < 0.95 else 100


def _pair(sketch: Sketch, operation: str) -> tuple[int, int]:
    """Two operands of the level's size."""
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


def _arithmetic(sketch: Sketch) -> Problem | None:
    operation = sketch.rng.choice("+-*/")
    a, b = _pair(sketch, operation)
    key = _sorted_key(operation, (a, b)) if operation in "+*" else f"{a}{operation}{b}"
    if sketch.rng.random() < 0.5:
        question = sketch.words(w.EXPRESSION).format(e=_spell(sketch, f"{a}{operation}{b}"))
    else:
        below = _words_below(sketch.rng)
        shown = {name: spelled(n) if n < below else n for name, n in (("a", a), ("b", b))}
        question = sketch.words(w.IN_WORDS[operation]).format(**shown)
        question = question[0].upper() + question[1:]
    if operation == "*" and a < b:
        a, b = b, a  # the larger number is the one that is taken apart
    sketch.work(a, operation, b)
    return sketch.problem("arithmetic", question, key)


def _chain(sketch: Sketch) -> Problem | None:
    """Two to four operations with the usual precedence, parentheses from level 3."""
    rng = sketch.rng
    if rng.random() < (0.2, 0.3, 0.5, 0.5, 0.5)[sketch.level - 1]:
        return _any_chain(sketch)
    small, medium = (
        sketch.between((2, 9), (2, 12), (2, 19), (3, 49), (3, 99)),
        sketch.between((2, 20), (5, 60), (5, 99), (10, 199), (10, 499)),
    )
    digit, other = rng.randint(2, 9), sketch.between((2, 20), (2, 50), (2, 99), (5, 199), (5, 399))
    shape = rng.randrange(3 if sketch.level < 3 else 8)
    if shape == 0:  # a*b±c
        operation = rng.choice("+-")
        expression = f"{small}*{digit}{operation}{other}"
        sketch.work(sketch.work(small, "*", digit), operation, other)
    elif shape == 1:  # a±b*c
        operation = rng.choice("+-")
        expression = f"{medium}{operation}{small}*{digit}"
        sketch.work(medium, operation, sketch.work(small, "*", digit))
    elif shape == 2:  # a±b±c
        first, second = rng.choice("+-"), rng.choice("+-")
        expression = f"{medium}{first}{small}{second}{other}"
        sketch.work(sketch.work(medium, first, small), second, other)
    elif shape == 3:  # (a±b)*c
        operation = rng.choice("+-")
        expression = f"({medium}{operation}{small})*{digit}"
        sketch.work(sketch.work(medium, operation, small), "*", digit)
    elif shape == 4:  # a*b+c*d
        operation, last = rng.choice("+-"), rng.randint(2, 9)
        expression = f"{medium}*{digit}{operation}{small}*{last}"
        first_product = sketch.work(medium, "*", digit)
        sketch.work(first_product, operation, sketch.work(small, "*", last))
    elif shape == 5:  # (a+b)/c, exact
        total = digit * other
        if total <= small:
            return None
        expression = f"({total - small}+{small})/{digit}"
        sketch.work(sketch.work(total - small, "+", small), "/", digit)
    elif shape == 6:  # a/b±c
        operation = rng.choice("+-")
        expression = f"{digit * other}/{digit}{operation}{small}"
        sketch.work(sketch.work(digit * other, "/", digit), operation, small)
    else:  # a*b with two digits each, then ±c
        a, b = rng.randint(11, 99), rng.randint(11, 29 if sketch.level < 5 else 99)
        operation = rng.choice("+-")
        expression = f"{a}*{b}{operation}{small}"
        sketch.work(sketch.work(a, "*", b), operation, small)
    question = sketch.words(w.EXPRESSION).format(e=_spell(sketch, expression))
    return sketch.problem("chain", question, expression)


def _any_chain(sketch: Sketch) -> Problem | None:
    """Any expression of three to five numbers, worked out in the usual order."""
    count = sketch.between((3, 3), (3, 3), (3, 4), (3, 4), (4, 5))
    made = _expression(sketch, count)
    if made is None:
        return None
    expression, _, _ = made
    if sketch.level < 3 and "(" in expression:
        return None
    question = sketch.words(w.EXPRESSION).format(e=_spell(sketch, expression))
    return sketch.problem("chain", question, expression)


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "": 3}


def _expression(sketch: Sketch, count: int) -> tuple[str, int, str] | None:
    """Text, value and outermost operation of `count` numbers; None where it does not come out."""
    rng = sketch.rng
    if count == 1:
        n = sketch.between((2, 12), (2, 30), (2, 40), (2, 99), (2, 250))
        return str(n), n, ""
    part = rng.randint(1, count - 1)
    left = _expression(sketch, part)
    right = _expression(sketch, count - part)
    if left is None or right is None:
        return None
    (one, a, inner), (other, b, last) = left, right
    operation = rng.choice("++--**/")
    if operation == "/":
        if not 2 <= b <= 30 or (b > 12 and last == ""):
            return None
        if inner == "":  # a number of its own is made to fit
            a = b * sketch.between((2, 9), (2, 12), (2, 20), (2, 40), (2, 60))
            one = str(a)
        if a % b or a // b > 99:
            return None
    if operation == "*" and (min(a, b) > 30 or max(a, b) > 200 or min(a, b) < 2):
        return None
    if operation == "-" and a < b:
        return None
    strength = _PRECEDENCE[operation]
    if _PRECEDENCE[inner] < strength:
        one = f"({one})"
    if _PRECEDENCE[last] < strength or (_PRECEDENCE[last] == strength and operation in "-/"):
        other = f"({other})"
    elif _PRECEDENCE[last] == strength:
        return None  # a+(b+c) is written, and worked out, as (a+b)+c
    return f"{one}{operation}{other}", sketch.work(a, operation, b), operation


def _remainder(sketch: Sketch) -> Problem | None:
    a = sketch.between((5, 40), (20, 80), (30, 99), (50, 250), (100, 600))
    b = sketch.between((2, 5), (3, 9), (3, 9), (3, 12), (3, 30))
    if a < b or (b > 12 and a // b > 19):
        return None
    product = sketch.work(b, "*", a // b)
    sketch.work(a, "-", product)
    question = sketch.words(w.REMAINDER).format(a=a, b=b)
    return sketch.problem("remainder", question, f"{a}%{b}")


def _sum(sketch: Sketch) -> Problem | None:
    count = sketch.between((3, 3), (3, 4), (3, 5), (4, 6), (5, 7))
    high = (12, 40, 99, 99, 199)[sketch.level - 1]
    numbers = [sketch.rng.randint(2, high) for _ in range(count)]
    total = numbers[0]
    for number in numbers[1:]:
        total = sketch.work(total, "+", number)
    if sketch.rng.random() < 0.3:
        question = sketch.words(w.EXPRESSION).format(e=_spell(sketch, "+".join(map(str, numbers))))
    else:
        listed = ", ".join(map(str, numbers))
        if sketch.rng.random() < 0.5:
            listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
        question = sketch.words(w.SUM).format(l=listed)
    return sketch.problem("sum", question, _sorted_key("+", numbers))


def _one_unknown(sketch: Sketch) -> Problem | None:
    rng = sketch.rng
    x = sketch.between((1, 9), (2, 12), (2, 30), (5, 60), (11, 99))
    m = rng.randint(2, 9)
    if sketch.level > 3 and rng.random() < 0.2:
        m, x = rng.randint(10, 25), rng.randint(2, 20)
    b = sketch.between((1, 20), (2, 50), (2, 99), (5, 199), (5, 499))
    sign = "+" if rng.random() < 0.6 else "-"
    c = m * x + b if sign == "+" else m * x - b
    if c <= 0:
        return None
    letter = "x" if rng.random() < 0.6 else rng.choice("abcknmpqtyz")
    if rng.random() < 0.35:
        wordings = w.ONE_UNKNOWN_IN_WORDS if sign == "+" else w.ONE_UNKNOWN_LESS
        question, letter = _Story(sketch).tell(wordings, m=m, b=b, c=c), "x"
    else:
        times = rng.choice(("", "", "*", " * "))
        side = rng.choice((f"{m}{times}{letter} {sign} {b}", f"{m}{times}{letter}{sign}{b}"))
        if sign == "+" and rng.random() < 0.15:
            side = f"{b} + {m}{times}{letter}"
        equation = f"{side} = {c}" if rng.random() < 0.85 else f"{c} = {side}"
        if rng.random() < 0.4:
            equation = equation.replace(" = ", "=")
        question = re.sub(r"\bx\b", letter, sketch.words(w.ONE_UNKNOWN)).format(q=equation)
    product = sketch.work(c, "-" if sign == "+" else "+", b, left=f"{m}{letter}")
    sketch.work(product, "/", m, left=letter)
    return sketch.problem("one-unknown", question, f"{m}x{sign}{b}={c}")


def _two_unknowns(sketch: Sketch) -> Problem | None:
    """Two numbers by their sum and their difference."""
    rng = sketch.rng
    y = sketch.between((1, 10), (2, 25), (5, 60), (10, 150), (10, 400))
    d = sketch.between((1, 9), (1, 20), (1, 50), (2, 99), (2, 300))
    wanted, total = rng.choice("xy"), y + d + y
    first, second = ("x", "y") if rng.random() < 0.7 else rng.choice(("ab", "pq", "mn", "uv"))
    letter = first if wanted == "x" else second
    if rng.random() < 0.45:
        letter = "x"
        wordings = w.LARGER if wanted == "x" else w.SMALLER
        question = _Story(sketch).tell(wordings, s=total, d=d)
    else:
        text = sketch.words(w.TWO_UNKNOWNS)
        text = re.sub(r"\bx\b", first, re.sub(r"\by\b", second, text))
        question = text.format(s=total, d=d, w=letter)
    double = sketch.work(total, "+" if wanted == "x" else "-", d, left=f"2{letter}")
    sketch.work(double, "/", 2, left=letter)
    return sketch.problem("two-unknowns", question, f"x+y={total},x-y={d},{wanted}")


def _operate(sketch: Sketch) -> Problem | None:
    """Start with a number, then two to four operations one after the other."""
    rng = sketch.rng
    value = sketch.between((2, 12), (5, 40), (10, 99), (10, 199), (20, 499))
    first, short, key = value, list[str](), str(value)
    sentences = [sketch.words(w.START).format(n=first)]
    for _ in range(sketch.between((2, 2), (2, 3), (3, 3), (3, 4), (4, 4))):
        divisors = [n for n in range(2, 10) if value % n == 0 and value > n]
        operation = rng.choice("+-*" + ("/" if divisors and value < 900 else ""))
        if operation == "*" and value > 199:
            operation = "+"
        if operation in "+-":
            n = min(
                sketch.between((1, 12), (2, 40), (2, 99), (5, 199), (5, 499)), max(1, value - 1)
            )
        else:
            n = rng.choice(divisors) if operation == "/" else rng.randint(2, 9)
        if operation in "*/" and n == 2 and rng.random() < 0.5:
            sentences.append(sketch.words(w.DOUBLE if operation == "*" else w.HALVE))
        elif operation == "*" and n == 3 and rng.random() < 0.5:
            sentences.append(sketch.words(w.TRIPLE))
        else:
            sentences.append(sketch.words(w.OPERATE[operation]).format(n=n))
        short.append(rng.choice(w.SHORT[operation]).format(n=n))
        value, key = sketch.work(value, operation, n), f"({key}){operation}{n}"
    end = sketch.words(w.OPERATE_END)
    if rng.random() < 0.12:
        begin = f"{sentences[0][:-1]}, " if rng.random() < 0.6 else f"start: {first}. "
        question = f"{begin}{rng.choice((', ', ', then ')).join(short)}. {end}"
    else:
        question = _in_a_row([*sentences, end], rng)
    return sketch.problem("operate", question, key)


def _in_a_row(sentences: Sequence[str], rng: random.Random) -> str:
    """Instructions as sentences, or run together: "Start with 10, double it, then subtract 3."."""
    if rng.random() < 0.6:
        return " ".join(sentences)
    *told, end = sentences
    text = told[0][:-1]
    for n, sentence in enumerate(told[1:], 2):
        clause = re.sub(r"^(Then|Next|Now|And|After that)[ ,]+", "", sentence)[:-1]
        mark = ", then " if n == len(told) or rng.random() < 0.3 else ", "
        text += rng.choice((mark, mark, " and ")) + clause[0].lower() + clause[1:]
    return f"{text}. {end}" if rng.random() < 0.6 else f"{text}."


_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
         "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
         "nineteen"]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(n: int) -> str:
    """A number below 100 in words."""
    if n < 20:
        return _ONES[n]
    tens, ones = _TENS[n // 10 - 2], n % 10
    return f"{tens}-{_ONES[ones]}" if ones else tens


class _Story:
    """The people and things of one word problem, and how it is told.

    The words for each part of it ("has", "gain", "left", ...) are those for anybody's things, the
    teller's own, or those of a scene, such as birds on a tree.
    """

    def __init__(self, sketch: Sketch, *, scenes: bool = False, mine: bool = True) -> None:
        rng = sketch.rng
        self.sketch = sketch
        self.names = dict(zip("NM", rng.sample(w.NAMES, 2), strict=True))
        self.things = dict(zip("ij", rng.sample(w.ITEMS, 2), strict=True))
        self.container = rng.choice(w.CONTAINERS)
        self.pronoun = rng.choice(("he", "she", None))
        self.in_words = _words_below(rng)
        self.scene: dict[str, Any] = {}
        self.words: dict[str, list[str]] = w.MINE if mine and rng.random() < 0.15 else w.THEIRS
        if scenes and rng.random() < 0.2:
            self.scene = rng.choice(w.SCENES[-2:] if sketch.new_wordings else w.SCENES[:-2])
            self.things["i"] = self.scene["noun"]
        elif rng.random() < 0.1:  # things nobody has heard of can be counted too
            self.things = {name: _invented(rng) for name in self.things}

    def part(self, name: str, **numbers: int) -> str:
        """One part of a story of several sentences."""
        if self.scene:
            return self._filled(self.sketch.rng.choice(self.scene[name]), numbers)
        return self.tell(self.words[name], **numbers)

    def tell(self, wordings: Sequence[str], **numbers: int) -> str:
        return self._filled(self.sketch.words(wordings), numbers)

    def _filled(self, wording: str, numbers: Mapping[str, int]) -> str:
        spell = str if "$" in wording else self._number  # nobody writes "$seven"
        words = {**self.names, **self.things, "c": self.container}
        text = wording.format(**words | {name: spell(n) for name, n in numbers.items()})
        return text[0].upper() + text[1:]

    def joined(self, sentences: Sequence[str]) -> str:
        """The story as people write it: sentences run together, names give way to pronouns."""
        rng, name = self.sketch.rng, self.names["N"]
        names = (name, self.names["M"], "I")
        text, subject = sentences[0], sentences[0].split()[0]
        for sentence in sentences[1:]:
            dice, told = rng.random(), text[-1] == "." and sentence[-1] == "."
            if told and subject in names and sentence.startswith(f"{subject} ") and dice < 0.35:
                link = rng.choice((" and ", " and ", ", then ", " and then ", ", "))
                text = text[:-1] + link + sentence.removeprefix(f"{subject} ")
            elif text.startswith(f"{name} ") and self.pronoun is not None and dice < 0.75:
                text = f"{text} {_with_pronoun(sentence, name, self.pronoun)}"
            elif told and dice > 0.9:
                rest = sentence.removeprefix("Then ")
                start = rest if rest.split()[0] in names else rest[0].lower() + rest[1:]
                text = text[:-1] + rng.choice((" and ", ", and ", ", then ")) + start
            else:
                text = f"{text} {sentence}"
            subject = sentence.split()[0]
        return text

    def _number(self, n: int) -> str:
        return spelled(n) if n < self.in_words else str(n)


def _with_pronoun(sentence: str, name: str, pronoun: str) -> str:
    """The sentence without the name, where it is the one who does something."""
    if sentence.startswith(f"{name} "):
        return pronoun.capitalize() + sentence[len(name) :]
    return re.sub(rf"(does|did|will|has) {name}\b", rf"\1 {pronoun}", sentence)


def _invented(rng: random.Random) -> str:
    """A plural that is in no list."""
    syllables = [rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3)]
    return "".join(syllables[: rng.randint(2, 3)]) + rng.choice(("s", "ks", "ns", "ps", "ts"))


def _have(sketch: Sketch, story: _Story) -> tuple[str, str, int]:
    """How a story begins: a sentence, its expression, its value."""
    if story.scene or sketch.rng.random() < 0.5:
        a = sketch.between((3, 20), (10, 60), (10, 99), (50, 299), (100, 799))
        return story.part("has", a=a), str(a), a
    a, b = _groups(sketch)
    value = sketch.work(max(a, b), "*", min(a, b), noun=story.things["i"])
    return story.part("groups", a=a, b=b), _sorted_key("*", (a, b)), value


def _groups(sketch: Sketch) -> tuple[int, int]:
    """So many containers, and so many things in each."""
    a = sketch.between((2, 5), (2, 9), (3, 9), (4, 12), (5, 24))
    return a, sketch.between((2, 9), (3, 15), (5, 30), (8, 60), (11, 99))


def _change(sketch: Sketch, story: _Story, key: str, value: int, sign: str) -> tuple[str, str, int]:
    n = sketch.between((1, 9), (2, 30), (3, 60), (5, 150), (5, 300))
    n = min(n, value - 1) if sign == "-" else n
    sentence = story.part("gain" if sign == "+" else "loss", a=n)
    return sentence, f"{key}{sign}{n}", sketch.work(value, sign, n, noun=story.things["i"])


def _word_changes(sketch: Sketch, last: str, family: str, ending: str) -> Problem | None:
    story = _Story(sketch, scenes=True)
    sentence, key, value = _have(sketch, story)
    sentences = [sentence]
    more = sketch.rng.randint(0, (0, 0, 1, 2, 2)[sketch.level - 1])
    for sign in [sketch.rng.choice("+-") for _ in range(more)] + [last]:
        if value < 2:
            return None
        sentence, key, value = _change(sketch, story, key, value, sign)
        sentences.append(sentence)
    return sketch.problem(family, story.joined([*sentences, story.part(ending)]), key)


def _word_total(sketch: Sketch) -> Problem | None:
    kind = sketch.rng.choice(
        (_word_gained, _word_gained, _word_gained, _two_people, _two_people, _more_than, _more_one,
         _times, _prices, _prices, _loose, _three, _three)
    )  # fmt: skip
    return kind(sketch)


def _word_gained(sketch: Sketch) -> Problem | None:
    return _word_changes(sketch, "+", "word-total", "now")


def _two_people(sketch: Sketch) -> Problem | None:
    story = _Story(sketch)
    a, b = _pair(sketch, "+")
    sketch.work(a, "+", b, noun=story.things["i"])
    question = story.tell(w.TWO_PEOPLE, a=a, b=b)
    return sketch.problem("word-total", question, _sorted_key("+", (a, b)))


def _more_than(sketch: Sketch) -> Problem | None:
    a = sketch.between((2, 12), (5, 40), (10, 99), (20, 299), (50, 499))
    b = sketch.between((1, 9), (2, 20), (5, 60), (10, 99), (20, 299))
    sketch.work(a, "+", sketch.work(a, "+", b))
    question = _Story(sketch).tell(w.MORE_THAN, a=a, b=b)
    return sketch.problem("word-total", question, f"{a}+({a}+{b})")


def _more_one(sketch: Sketch) -> Problem | None:
    """What the other one has."""
    a, b = _pair(sketch, "+")
    sketch.work(a, "+", b)
    question = _Story(sketch).tell(w.MORE_ONE, a=a, b=b)
    return sketch.problem("word-total", question, _sorted_key("+", (a, b)))


def _times(sketch: Sketch) -> Problem | None:
    """Times as many: the other one's, or both together."""
    a = sketch.between((2, 9), (3, 20), (5, 60), (11, 99), (21, 199))
    b = sketch.rng.randint(2, 9)
    value = sketch.work(a, "*", b) if a > 9 or a >= b else sketch.work(b, "*", a)
    if sketch.rng.random() < 0.5:
        question = _Story(sketch).tell(w.TIMES_ONE, a=a, b=b)
        return sketch.problem("word-total", question, _sorted_key("*", (a, b)))
    sketch.work(a, "+", value)
    return sketch.problem("word-total", _Story(sketch).tell(w.TIMES_BOTH, a=a, b=b), f"{a}+{a}*{b}")


def _prices(sketch: Sketch) -> Problem | None:
    a, b = sketch.between((2, 5), (2, 9), (2, 9), (3, 12), (3, 19)), sketch.rng.randint(2, 9)
    p, r = sketch.between((2, 5), (2, 9), (3, 20), (3, 40), (5, 60)), sketch.rng.randint(2, 9)
    first = sketch.work(max(a, p), "*", min(a, p))
    sketch.work(first, "+", sketch.work(b, "*", r))
    question = _Story(sketch).tell(w.PRICE, a=a, b=b, p=p, r=r)
    return sketch.problem("word-total", question, f"{a}*{p}+{b}*{r}")


def _loose(sketch: Sketch) -> Problem | None:
    """Full boxes and some more."""
    story = _Story(sketch)
    a, b = _groups(sketch)
    d = sketch.between((1, 9), (2, 20), (2, 40), (3, 99), (5, 199))
    sketch.work(sketch.work(max(a, b), "*", min(a, b)), "+", d, noun=story.things["i"])
    question = story.tell(w.LOOSE, a=a, b=b, d=d)
    return sketch.problem("word-total", question, f"{_sorted_key('*', (a, b))}+{d}")


def _three(sketch: Sketch) -> Problem | None:
    """Three of a kind."""
    a, b, d = (sketch.between((2, 12), (3, 40), (5, 99), (10, 299), (20, 499)) for _ in range(3))
    story = _Story(sketch)
    sketch.work(sketch.work(a, "+", b), "+", d, noun=story.things["i"])
    question = story.tell(w.THREE, a=a, b=b, d=d)
    return sketch.problem("word-total", question, _sorted_key("+", (a, b, d)))


def _word_left(sketch: Sketch) -> Problem | None:
    kind = sketch.rng.choice(
        (_word_lost, _word_lost, _word_lost, _word_lost, _word_lost, _word_lost, _word_taken,
         _word_two_losses, _word_two_losses, _change_back, _fewer_one, _used_daily)
    )  # fmt: skip
    return kind(sketch)


def _word_lost(sketch: Sketch) -> Problem | None:
    return _word_changes(sketch, "-", "word-left", "left")


def _change_back(sketch: Sketch) -> Problem | None:
    """What remains of the money after buying."""
    b = sketch.between((2, 5), (2, 9), (2, 9), (3, 12), (3, 19))
    p = sketch.between((2, 5), (2, 9), (3, 20), (3, 40), (5, 60))
    cost = sketch.work(max(b, p), "*", min(b, p))
    bills = [bill for bill in (10, 20, 50, 100, 200, 500, 1000) if bill > cost]
    a = bills[0] if bills and sketch.rng.random() < 0.5 else cost + sketch.rng.randint(1, 99)
    sketch.work(a, "-", cost)
    question = _Story(sketch).tell(w.CHANGE, a=a, b=b, p=p)
    return sketch.problem("word-left", question, f"{a}-{_sorted_key('*', (b, p))}")


def _used_daily(sketch: Sketch) -> Problem | None:
    """What is left after the same amount several times."""
    b, d = _groups(sketch)
    used = sketch.work(max(b, d), "*", min(b, d))
    a = used + sketch.between((1, 20), (1, 60), (2, 99), (5, 300), (5, 500))
    sketch.work(a, "-", used)
    question = _Story(sketch).tell(w.USED_DAILY, a=a, b=b, d=d)
    return sketch.problem("word-left", question, f"{a}-{_sorted_key('*', (b, d))}")


def _fewer_one(sketch: Sketch) -> Problem | None:
    """What the other one has, or how many more."""
    a, b = _pair(sketch, "-")
    sketch.work(a, "-", b)
    question = _Story(sketch).tell(w.FEWER_ONE, a=a, b=b)
    return sketch.problem("word-left", question, f"{a}-{b}")


def _word_taken(sketch: Sketch) -> Problem | None:
    """A part of the whole: "40 seats, 27 are taken"."""
    story = _Story(sketch)
    a, b = _pair(sketch, "-")
    sketch.work(a, "-", b, noun=story.things["i"])
    return sketch.problem("word-left", story.tell(w.TAKEN, a=a, b=b), f"{a}-{b}")


def _word_two_losses(sketch: Sketch) -> Problem | None:
    """Two things happen in one sentence."""
    story = _Story(sketch, mine=False)
    sentence, key, value = _have(sketch, story)
    if value < 4:
        return None
    b = min(sketch.between((1, 6), (2, 20), (3, 40), (5, 90), (5, 200)), value - 2)
    c = min(sketch.between((1, 6), (2, 20), (3, 40), (5, 90), (5, 200)), value - b - 1)
    rest = sketch.work(value, "-", b, noun=story.things["i"])
    sketch.work(rest, "-", c, noun=story.things["i"])
    sentences = [sentence, story.tell(w.TWO_LOSSES, b=b, d=c), story.part("left")]
    return sketch.problem("word-left", story.joined(sentences), f"{key}-{b}-{c}")


def _word_share(sketch: Sketch) -> Problem | None:
    story, dice = _Story(sketch), sketch.rng.random()
    if dice < 0.2:
        a, b = _pair(sketch, "*")
        sketch.work(max(a, b), "*", min(a, b))
        return sketch.problem("word-share", story.tell(w.RATE, a=a, b=b), _sorted_key("*", (a, b)))
    if dice < 0.35:
        a, b = _pair(sketch, "/")
        sketch.work(a, "/", b)
        return sketch.problem("word-share", story.tell(w.GROUPS_NEEDED, a=a, b=b), f"{a}/{b}")
    if dice < 0.55:
        return _two_then_shared(sketch, story)
    sentence, key, value = _have(sketch, story)
    sentences = [sentence]
    for _ in range(sketch.rng.randint(0, (0, 1, 1, 2, 2)[sketch.level - 1])):
        if value < 2:
            return None
        sentence, key, value = _change(sketch, story, key, value, sketch.rng.choice("+-"))
        sentences.append(sentence)
    divisors = [k for k in range(2, 13) if value % k == 0 and value > k]
    if not divisors:
        return None
    k = sketch.rng.choice(divisors)
    sketch.work(value, "/", k, noun=story.things["i"])
    return sketch.problem(
        "word-share", story.joined([*sentences, story.part("share", k=k)]), f"({key})/{k}"
    )


def _two_then_shared(sketch: Sketch, story: _Story) -> Problem | None:
    """Put together, or diminished, and then shared."""
    k = sketch.between((2, 5), (2, 9), (2, 9), (2, 12), (3, 15))
    whole = k * sketch.between((2, 9), (2, 15), (5, 30), (5, 60), (11, 99))
    b = sketch.between((1, 9), (2, 30), (3, 60), (5, 150), (5, 300))
    together = sketch.rng.random() < 0.5
    if together and whole - b < 2:
        return None
    a = whole - b if together else whole + b
    sign = "+" if together else "-"
    sketch.work(sketch.work(a, sign, b), "/", k, noun=story.things["i"])
    question = story.tell(w.TOGETHER_SHARED if together else w.REST_SHARED, a=a, b=b, k=k)
    return sketch.problem("word-share", question, f"({a}{sign}{b})/{k}")


FAMILIES: dict[str, Callable[[Sketch], Problem | None]] = {
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
