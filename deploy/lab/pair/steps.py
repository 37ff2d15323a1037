"""Steps of a chain of thought: right ones, planted mistakes, and the exact checker."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from os.path import commonprefix

from deploy.evaluation.builtin.sketch import Fact, GeneratedProblem, apply
from deploy.lab.pair import words

WORDS: dict[str, list[str]] = words.WORDS

KEYWORDS = (
    "wait", "alternatively", "hold on", "another", "verify", "think again", "recap", "check",
    "yeah", "yes", "final answer", "confident",
)  # fmt: skip
"""Speculative Thinking's reflection keywords (2504.12329, A.2), matched in lower case."""

DELIMITER = "\n\n"
_EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
NUMBER = re.compile(r"\d+")


def step_text(problem: GeneratedProblem, index: int, rng: random.Random) -> str:
    """The right step number `index` in one of its wordings (the last one concludes)."""
    if index == len(problem.facts):
        return rng.choice(WORDS["conclude"]).format(v=problem.answer)
    fact = problem.facts[index]
    noun = f" {fact.noun}" if fact.noun and rng.random() < 0.5 else ""
    return (
        rng.choice(WORDS["lead_next"] if index else WORDS["lead_first"])
        + fact.equation
        + noun
        + "."
    )


def is_right(problem: GeneratedProblem, index: int, text: str) -> bool:
    """Whether a step is the one due after `index` right ones (operands of + and * may swap).

    A reflection on the step before, with its value, is right too.
    """
    numbers = NUMBER.findall(text)
    equations = _EQUATION.findall(text)
    if reflects(text):
        return (
            index > 0
            and index <= len(problem.facts)
            and _states(problem.facts[index - 1], equations)
        )
    if index >= len(problem.facts):
        return not equations and bool(numbers) and numbers[-1] == problem.answer
    return _states(problem.facts[index], equations)


def reflects(text: str) -> bool:
    return any(word in text.lower() for word in KEYWORDS)


def _states(fact: Fact, equations: Sequence[tuple[str, str, str, str]]) -> bool:
    """Exactly one equation, and it is this fact's."""
    if len(equations) != 1:
        return False
    a, operation, b, value = equations[0]
    same = f"{a}{operation}{b}" == fact.expression
    swapped = operation in "+*" and f"{b}{operation}{a}" == fact.expression
    return (same or swapped) and value == str(fact.value)


def plant_mistake(problem: GeneratedProblem, index: int, rng: random.Random) -> str:
    """A wrong step: a wrong digit, a wrongly copied operand, a wrong operation, an early end."""
    if index == len(problem.facts):
        value = problem.facts[rng.randrange(index)].value
        wrong = _slip(value, rng) if str(value) == problem.answer else value
        return rng.choice(WORDS["conclude"]).format(v=wrong)
    fact = problem.facts[index]
    matched = re.fullmatch(r"(\d+)([-+*/])(\d+)", fact.expression)
    assert matched is not None
    a, operation, b = int(matched[1]), matched[2], int(matched[3])
    kind, value = rng.random(), fact.value
    if kind < 0.6:
        value = _slip(value, rng)
    elif kind < 0.8:
        a, b = (_slip(a, rng), b) if rng.random() < 0.5 else (a, _slip(b, rng))
        b = max(b, 1)
        value = max(apply(a, operation, b), 0)
    elif kind < 0.9:
        operation = rng.choice([o for o in "+-*" if o != operation])
        value = abs(apply(a, operation, b))
    elif index:
        return rng.choice(WORDS["conclude"]).format(v=problem.facts[index - 1].value)
    else:
        value = _slip(value, rng)
    slipped = Fact(f"{a}{operation}{b}", value, fact.left)
    text = rng.choice(WORDS["lead_next"] if index else WORDS["lead_first"]) + slipped.equation + "."
    return text if not is_right(problem, index, text) else plant_mistake(problem, index, rng)


def repair_text(problem: GeneratedProblem, index: int, written: str, rng: random.Random) -> str:
    """A reflection that states step `index` rightly after something wrong was `written`."""
    return _reflection(problem.facts[index], written, rng)


def plant_reflection(
    problem: GeneratedProblem, index: int, written: str, rng: random.Random
) -> str:
    """A wrong reflection on what was `written` as step `index`."""
    fact = problem.facts[index]
    return _reflection(replace(fact, value=_slip(fact.value, rng)), written, rng)


def _reflection(fact: Fact, written: str, rng: random.Random) -> str:
    numbers = NUMBER.findall(written)
    wrong = numbers[-1] if numbers else ""
    pattern = rng.choice(WORDS["wrong"])
    if not wrong or wrong == str(fact.value):
        # The value is right, something else was wrong.
        pattern = next(wording for wording in WORDS["wrong"] if "{w}" not in wording)
    return pattern.format(s=fact.equation, w=wrong)


def _slip(number: int, rng: random.Random) -> int:
    """A number one slip away: a digit changed, ten off, two digits swapped."""
    digits = list(str(number))
    if len(digits) > 1 and rng.random() < 0.15:
        i = rng.randrange(len(digits) - 1)
        digits[i], digits[i + 1] = digits[i + 1], digits[i]
    else:
        i = rng.randrange(len(digits))
        step = rng.choice([-1, 1, -1, 1, -2, 2, rng.randint(1, 9)])
        digits[i] = str((int(digits[i]) + step) % 10)
    slipped = int("".join(digits))
    return slipped if slipped != number else number + 1


def wrong_from(problem: GeneratedProblem, index: int, text: str) -> int:
    """The character from which a wrong step can be known to be wrong."""
    if index >= len(problem.facts):
        options = [problem.answer + "."]
    else:
        fact = problem.facts[index]
        a, operation, b = re.split(r"([-+*/])", fact.expression)
        options = [f"{a}{operation}{b}={fact.value}"]
        if operation in "+*":
            options.append(f"{b}{operation}{a}={fact.value}")
    equation = _EQUATION.search(text) or NUMBER.search(text)
    start = equation.start() if equation else 0
    written = text[start:]
    if index < len(problem.facts) and not _EQUATION.search(text):
        return start  # a conclusion where a step was due
    return start + max(len(commonprefix((written, option))) for option in options)  # noqa: RUF071
