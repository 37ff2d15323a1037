"""Families of bare calculations: arithmetic, chain, remainder, sum, operate."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence

from deploy.evaluation.builtin.sketch import (
    GeneratedProblem,
    Sketch,
    operands,
    sorted_key,
    spelled,
    words_below,
)
from deploy.evaluation.builtin.wordings import WORDS


def arithmetic(sketch: Sketch) -> GeneratedProblem | None:
    operation = sketch.rng.choice("+-*/")
    a, b = operands(sketch, operation)
    key = sorted_key(operation, (a, b)) if operation in "+*" else f"{a}{operation}{b}"
    if sketch.rng.random() < 0.5:
        question = sketch.words(WORDS["expression"]).format(e=_spell(sketch, f"{a}{operation}{b}"))
    else:
        below = words_below(sketch.rng)
        shown = {name: spelled(n) if n < below else n for name, n in (("a", a), ("b", b))}
        question = sketch.words(WORDS["two_operands"][operation]).format(**shown)
        question = question[0].upper() + question[1:]
    if operation == "*" and a < b:
        a, b = b, a  # the larger number is the one that is taken apart
    sketch.work(a, operation, b)
    return sketch.problem("arithmetic", question, key)


def _spell(sketch: Sketch, expression: str) -> str:
    """Write the expression as people type it: with other signs and spaces."""
    rng = sketch.rng
    if rng.random() < 0.25:
        expression = expression.replace("*", rng.choice("×x")).replace("/", "÷")
    if rng.random() < 0.5:
        for sign in "+-*/×x÷":
            expression = expression.replace(sign, f" {sign} ")
    return expression


def chain(sketch: Sketch) -> GeneratedProblem | None:
    """Draw two to four operations with the usual precedence, parentheses from level 3."""
    rng = sketch.rng
    if rng.random() < (0.2, 0.3, 0.5, 0.5, 0.5)[sketch.level - 1]:
        return _any_chain(sketch)
    small = sketch.between((2, 9), (2, 12), (2, 19), (3, 49), (3, 99))
    medium = sketch.between((2, 20), (5, 60), (5, 99), (10, 199), (10, 499))
    digit, other = rng.randint(2, 9), sketch.between((2, 20), (2, 50), (2, 99), (5, 199), (5, 399))
    match rng.randrange(3 if sketch.level < 3 else 8):
        case 0:
            expression = f"{small}*{digit}{rng.choice('+-')}{other}"
        case 1:
            expression = f"{medium}{rng.choice('+-')}{small}*{digit}"
        case 2:
            expression = f"{medium}{rng.choice('+-')}{small}{rng.choice('+-')}{other}"
        case 3:
            expression = f"({medium}{rng.choice('+-')}{small})*{digit}"
        case 4:
            expression = f"{medium}*{digit}{rng.choice('+-')}{small}*{rng.randint(2, 9)}"
        case 5:
            total = digit * other
            if total <= small:
                return None
            expression = f"({total - small}+{small})/{digit}"
        case 6:
            expression = f"{digit * other}/{digit}{rng.choice('+-')}{small}"
        case _:
            most = 29 if sketch.level < 5 else 99
            expression = f"{rng.randint(11, 99)}*{rng.randint(11, most)}{rng.choice('+-')}{small}"
    _work_out(sketch, ast.parse(expression, mode="eval").body)
    return _chain(sketch, expression)


def _work_out(sketch: Sketch, node: ast.expr) -> int:
    """Work out an expression in the usual order."""
    if isinstance(node, ast.BinOp):
        a, b = _work_out(sketch, node.left), _work_out(sketch, node.right)
        return sketch.work(a, _SIGNS[type(node.op)], b)
    return int(ast.unparse(node))


def _chain(sketch: Sketch, expression: str) -> GeneratedProblem | None:
    question = sketch.words(WORDS["expression"]).format(e=_spell(sketch, expression))
    return sketch.problem("chain", question, expression)


def _any_chain(sketch: Sketch) -> GeneratedProblem | None:
    """Draw any expression of three to five numbers, worked out in the usual order."""
    count = sketch.between((3, 3), (3, 3), (3, 4), (3, 4), (4, 5))
    parts = _expression(sketch, count)
    if parts is None or (sketch.level < 3 and "(" in parts[0]):
        return None
    return _chain(sketch, parts[0])


_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
}  # fmt: skip
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "": 3}


def _expression(sketch: Sketch, count: int) -> tuple[str, int, str] | None:
    """Return text, value and outermost operation of `count` numbers; None if they do not fit."""
    rng = sketch.rng
    if count == 1:
        n = sketch.between((2, 12), (2, 30), (2, 40), (2, 99), (2, 250))
        return str(n), n, ""
    part = rng.randint(1, count - 1)
    left, right = _expression(sketch, part), _expression(sketch, count - part)
    if left is None or right is None:
        return None
    (one, a, inner), (other, b, last) = left, right
    operation = rng.choice("++--**/")
    if operation == "/":
        if not 2 <= b <= 30 or (b > 12 and last == ""):
            return None
        if inner == "":  # a separate number is made to fit
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
        return None  # a+(b+c) is written and worked out as (a+b)+c
    return f"{one}{operation}{other}", sketch.work(a, operation, b), operation


def remainder(sketch: Sketch) -> GeneratedProblem | None:
    a = sketch.between((5, 40), (20, 80), (30, 99), (50, 250), (100, 600))
    b = sketch.between((2, 5), (3, 9), (3, 9), (3, 12), (3, 30))
    if a < b or (b > 12 and a // b > 19):
        return None
    product = sketch.work(b, "*", a // b)
    sketch.work(a, "-", product)
    question = sketch.words(WORDS["remainder"]).format(a=a, b=b)
    return sketch.problem("remainder", question, f"{a}%{b}")


def sum_of_numbers(sketch: Sketch) -> GeneratedProblem | None:
    count = sketch.between((3, 3), (3, 4), (3, 5), (4, 6), (5, 7))
    high = (12, 40, 99, 99, 199)[sketch.level - 1]
    numbers = [sketch.rng.randint(2, high) for _ in range(count)]
    total = numbers[0]
    for number in numbers[1:]:
        total = sketch.work(total, "+", number)
    if sketch.rng.random() < 0.3:
        question = sketch.words(WORDS["expression"]).format(
            e=_spell(sketch, "+".join(map(str, numbers)))
        )
    else:
        listed = ", ".join(map(str, numbers))
        if sketch.rng.random() < 0.5:
            listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
        question = sketch.words(WORDS["sum"]).format(l=listed)
    return sketch.problem("sum", question, sorted_key("+", numbers))


def operate(sketch: Sketch) -> GeneratedProblem | None:
    """Draw a number, then two to four operations one after the other."""
    rng = sketch.rng
    value = sketch.between((2, 12), (5, 40), (10, 99), (10, 199), (20, 499))
    first, short, key = value, list[str](), str(value)
    sentences = [sketch.words(WORDS["start"]).format(n=first)]
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
            sentences.append(sketch.words(WORDS["double"] if operation == "*" else WORDS["halve"]))
        elif operation == "*" and n == 3 and rng.random() < 0.5:
            sentences.append(sketch.words(WORDS["triple"]))
        else:
            sentences.append(sketch.words(WORDS["operate"][operation]).format(n=n))
        short.append(rng.choice(WORDS["short"][operation]).format(n=n))
        value, key = sketch.work(value, operation, n), f"({key}){operation}{n}"
    end = sketch.words(WORDS["end"])
    if rng.random() < 0.12:
        begin = f"{sentences[0][:-1]}, " if rng.random() < 0.6 else f"start: {first}. "
        question = f"{begin}{rng.choice((', ', ', then ')).join(short)}. {end}"
    else:
        question = _in_a_row([*sentences, end], rng)
    return sketch.problem("operate", question, key)


def _in_a_row(sentences: Sequence[str], rng: random.Random) -> str:
    """Join instructions as sentences or as one: "Start with 10, double it, then subtract 3."."""
    if rng.random() < 0.6:
        return " ".join(sentences)
    *instructions, end = sentences
    text = instructions[0][:-1]
    for n, sentence in enumerate(instructions[1:], 2):
        clause = re.sub(r"^(Then|Next|Now|And|After that)[ ,]+", "", sentence)[:-1]
        mark = ", then " if n == len(instructions) or rng.random() < 0.3 else ", "
        text += rng.choice((mark, mark, " and ")) + clause[0].lower() + clause[1:]
    return f"{text}. {end}" if rng.random() < 0.6 else f"{text}."
