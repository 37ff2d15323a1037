"""A problem set through several policies: who answers right, how fast, and at whose expense.

The policies take turns problem by problem, and the order of the turns rotates, so that a machine
that warms up or slows down treats all alike. `large-only` always runs: *speedup* is its summed
wall time over the policy's, at the same budget and with the same speculation in the large worker.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from time import perf_counter
from typing import Any, Final, Protocol

from orchestrator.errors import BatonError, InvalidRequest
from orchestrator.types import Step

BASELINE: Final = "large-only"
Z: Final = 1.959964  # of a 95 % interval


class Problem(Protocol):
    """A question whose answer is one value."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Question:
    """A problem from a file."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with parameters that runs under its label, such as `specreason:threshold=5`."""

    label: str
    policy: str
    params: dict[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> Contender:
        """From `NAME` or `NAME:KEY=VALUE:KEY=VALUE`; values are JSON, or else strings.

        Raises:
            InvalidRequest: a parameter without `=`.
        """
        name, *pairs = text.strip().split(":")
        params: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not key or not equals:
                raise InvalidRequest(f"{text}: write parameters as NAME:KEY=VALUE", param="policy")
            try:
                params[key] = json.loads(value)
            except ValueError:
                params[key] = value
        return cls(text.strip(), name, params)

    @property
    def budget(self) -> int | None:
        budget: int | None = self.params.get("budget")
        return budget

    def within(self, budget: int | None) -> Contender:
        """The same with a cap on thinking tokens, unless it has one of its own."""
        if budget is None or "budget" in self.params:
            return self
        return replace(self, params={**self.params, "budget": budget})


@dataclass(frozen=True, slots=True)
class Answered:
    """What one request came to. Tokens are counts, `output_tokens` those OpenAI would bill."""

    text: str
    small_tokens: int = 0
    large_tokens: int = 0
    output_tokens: int = 0
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One problem answered by one contender; `ms` is wall time."""

    correct: bool
    ms: float
    answered: Answered
    error: str | None = None


Ask = Callable[[str, Contender], Awaitable[Answered]]
Row = dict[str, Any]


def lineup(policies: Iterable[str], budgets: Sequence[int | None]) -> list[Contender]:
    """Every policy at every budget, the baseline among them, none twice."""
    parsed = [Contender.parse(text) for text in policies if text.strip()]
    if not any(contender == Contender(BASELINE, BASELINE) for contender in parsed):
        parsed.insert(0, Contender(BASELINE, BASELINE))
    found: list[Contender] = []
    for contender in (one.within(budget) for budget in budgets for one in parsed):
        if contender not in found:
            found.append(contender)
    return found


async def run(
    problems: Sequence[Problem],
    contenders: Sequence[Contender],
    ask: Ask,
    *,
    concurrency: int = 1,
    progress: Callable[[Contender, Outcome], None] = lambda _, __: None,
) -> list[list[Outcome]]:
    """Outcomes by contender, each in the order of the problems.

    Each contender first answers one problem unmeasured: whatever is slow only once is over then.
    With `concurrency` above 1 the turns are of that many problems at once.
    """
    outcomes: list[list[Outcome]] = [[] for _ in contenders]
    if not problems:
        return outcomes
    for contender in contenders:
        await _answer(problems[0], contender, ask)
    for turn, start in enumerate(range(0, len(problems), concurrency)):
        lot = problems[start : start + concurrency]
        for place in range(len(contenders)):
            index = (place + turn) % len(contenders)
            contender = contenders[index]
            answers = (_answer(problem, contender, ask) for problem in lot)
            for outcome in await asyncio.gather(*answers):
                outcomes[index].append(outcome)
                progress(contender, outcome)
    return outcomes


async def _answer(problem: Problem, contender: Contender, ask: Ask) -> Outcome:
    """A request that fails is a wrong answer with a reason; a policy that is wrong is ours."""
    began = perf_counter()
    try:
        answered = await ask(problem.question, contender)
    except InvalidRequest as error:
        if error.code != "context_length_exceeded":
            raise
        return Outcome(False, (perf_counter() - began) * 1000, Answered(""), error.message)
    except BatonError as error:
        return Outcome(False, (perf_counter() - began) * 1000, Answered(""), str(error))
    ms = (perf_counter() - began) * 1000
    return Outcome(same(answered.text, problem.answer), ms, answered)


def rows(
    contenders: Sequence[Contender],
    outcomes: Sequence[Sequence[Outcome]],
    *,
    speculation: str,
    transport: str,
) -> list[Row]:
    """One row per policy and budget; token counts and steps are means per problem.

    `accepted_steps` counts thinking steps of the small model that stayed. `difference` is the
    accuracy minus the baseline's on the same problems: at the same budget, or as it runs first
    where the budget is a parameter of the contender alone.
    """
    table = dict(zip(((c.label, c.budget) for c in contenders), outcomes, strict=True))
    usual = next(own for c, own in zip(contenders, outcomes, strict=True) if c.label == BASELINE)
    made = []
    for contender, own in zip(contenders, outcomes, strict=True):
        base = table.get((BASELINE, contender.budget), usual)
        right = [outcome.correct for outcome in own]
        times = [outcome.ms for outcome in own]
        low, high = wilson(sum(right), len(right))
        gain, gain_low, gain_high = paired(right, [outcome.correct for outcome in base])
        row: Row = {
            "policy": contender.label,
            "n": len(own),
            "accuracy": mean(right),
            "accuracy_low": low,
            "accuracy_high": high,
            "difference": gain,
            "difference_low": gain_low,
            "difference_high": gain_high,
            "p50_ms": quantile(times, 0.50),
            "p95_ms": quantile(times, 0.95),
            "total_ms": sum(times),
            "speedup": sum(outcome.ms for outcome in base) / sum(times) if sum(times) else 0.0,
            **{
                key: mean([getattr(outcome.answered, key) for outcome in own])
                for key in ("small_tokens", "large_tokens", "output_tokens")
            },
            "accepted_steps": mean([_kept(outcome, "small") for outcome in own]),
            "steps": mean([_kept(outcome) for outcome in own]),
            "budget": contender.budget,
            "speculation": speculation,
            "transport": transport,
            "errors": sum(outcome.error is not None for outcome in own),
        }
        made.append(row)
    return made


def _kept(outcome: Outcome, author: str | None = None) -> int:
    return sum(
        step.accepted and step.phase == "thought" and author in (None, step.author)
        for step in outcome.answered.steps
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two neighbours, as numpy does it."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


def wilson(right: int, count: int) -> tuple[float, float]:
    """A proportion's 95 % interval (Wilson's score interval)."""
    if not count:
        return 0.0, 1.0
    share, z2 = right / count, Z * Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[float, float, float]:
    """Accuracy minus another's on the same problems, with its 95 % interval.

    Bonett and Price (2012): one problem is added to each kind of disagreement, which holds the
    interval's promise also where nearly all problems agree.
    """
    count = len(ours)
    if not count:
        return 0.0, -1.0, 1.0
    won = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    lost = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    up, down = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = Z * math.sqrt((up + down - (up - down) ** 2) / (count + 2))
    return (won - lost) / count, max(-1.0, up - down - half), min(1.0, up - down + half)


_NUMBER: Final = r"(?:(?<![\w)])[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_VALUE: Final = re.compile(rf"({_NUMBER})(?:\s*/\s*({_NUMBER}))?")
_FRACTION: Final = re.compile(r"([-+]?)\s*\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LONGEST: Final = 1000  # digits and signs of a value; what is longer is no answer


def same(text: str, answer: str) -> bool:
    """Whether a text gives this answer: equal as a number, or as a word where neither is one."""
    given, wanted = extract(text), extract(answer)
    if isinstance(given, Fraction) or isinstance(wanted, Fraction):
        return given == wanted
    return given.casefold() == wanted.casefold()


def extract(text: str) -> Fraction | str:
    r"""The value of the last `\boxed{}`, else of the last number, else the text itself."""
    box = _boxed(text)
    text = text if box is None else box
    values = [value for value in map(_value, _VALUE.finditer(_plain(text))) if value is not None]
    return values[-1] if values else text.strip()


def _value(match: re.Match[str]) -> Fraction | None:
    above, below = match.group(1), match.group(2)
    if len(match.group()) > _LONGEST:
        return None
    value = Fraction(above.replace(",", ""))
    if below is None:
        return value
    divisor = Fraction(below.replace(",", ""))
    return value / divisor if divisor else None


def _plain(text: str) -> str:
    """LaTeX's spellings of a number as ASCII."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\,", "")
    text = text.replace("\\!", "").replace("\\$", "")
    return _FRACTION.sub(r"\1\2/\3", text)


def _boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{}`; braces inside it are counted."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth < 0:
            return text[begin:end]
    return text[begin:]
