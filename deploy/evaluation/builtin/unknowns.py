"""The families of equations with one and with two unknowns."""

from __future__ import annotations

import re

from deploy.evaluation.builtin.sketch import GeneratedProblem, Sketch
from deploy.evaluation.builtin.stories import Story
from deploy.evaluation.builtin.wordings import WORDS


def one_unknown(sketch: Sketch) -> GeneratedProblem | None:
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
        wordings = WORDS["one_unknown_plus"] if sign == "+" else WORDS["one_unknown_minus"]
        question, letter = Story(sketch).filled(wordings, m=m, b=b, c=c), "x"
    else:
        times = rng.choice(("", "", "*", " * "))
        side = rng.choice((f"{m}{times}{letter} {sign} {b}", f"{m}{times}{letter}{sign}{b}"))
        if sign == "+" and rng.random() < 0.15:
            side = f"{b} + {m}{times}{letter}"
        equation = f"{side} = {c}" if rng.random() < 0.85 else f"{c} = {side}"
        if rng.random() < 0.4:
            equation = equation.replace(" = ", "=")
        question = re.sub(r"\bx\b", letter, sketch.words(WORDS["one_unknown"])).format(q=equation)
    product = sketch.work(c, "-" if sign == "+" else "+", b, left=f"{m}{letter}")
    sketch.work(product, "/", m, left=letter)
    return sketch.problem("one-unknown", question, f"{m}x{sign}{b}={c}")


def two_unknowns(sketch: Sketch) -> GeneratedProblem | None:
    """Draw two numbers, given by their sum and their difference."""
    rng = sketch.rng
    y = sketch.between((1, 10), (2, 25), (5, 60), (10, 150), (10, 400))
    d = sketch.between((1, 9), (1, 20), (1, 50), (2, 99), (2, 300))
    wanted, total = rng.choice("xy"), y + d + y
    first, second = ("x", "y") if rng.random() < 0.7 else rng.choice(("ab", "pq", "mn", "uv"))
    letter = first if wanted == "x" else second
    if rng.random() < 0.45:
        letter = "x"
        wordings = WORDS["larger"] if wanted == "x" else WORDS["smaller"]
        question = Story(sketch).filled(wordings, s=total, d=d)
    else:
        text = sketch.words(WORDS["two_unknowns"])
        text = re.sub(r"\bx\b", first, re.sub(r"\by\b", second, text))
        question = text.format(s=total, d=d, w=letter)
    double = sketch.work(total, "+" if wanted == "x" else "-", d, left=f"2{letter}")
    sketch.work(double, "/", 2, left=letter)
    return sketch.problem("two-unknowns", question, f"x+y={total},x-y={d},{wanted}")
