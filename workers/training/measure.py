"""What the embedded pair can do, measured on problems it never saw.

accuracy     greedy answers, by level and family
judge        the expected digit and the minimum log-probability against the exact checker, on all
             that the small model writes after right prefixes, reflections included (area under
             the ROC curve)
hesitation   how often the small model opens with a reflection keyword after its own steps
repair       how often the large one, continuing from a wrong step, ends at the right answer
acceptance   the chance that speculative sampling accepts a token of a draft model
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from workers.training.documents import JUDGE_QUESTION
from workers.training.harvest import Author, own_steps, positions
from workers.training.problems import GeneratedProblem, Part, draw, stream
from workers.training.steps import DELIMITER, is_right, reflects
from workers.training.vocabulary import ASSISTANT, END, USER

ANSWER_TOKENS = 320
HESITATION_TOKENS = 8
"""Tokens read after the delimiter: less than a step, so that only doubts of this one count."""


def answer_of(text: str) -> str:
    """The number in the last box of a text, or an empty string."""
    return text.rpartition("\\boxed{")[2].partition("}")[0] if "\\boxed{" in text else ""


def accuracy(
    author: Author, problems: Sequence[GeneratedProblem], batch: int = 250
) -> dict[str, Any]:
    """Share of right answers, overall, by level and by family."""
    right: dict[str, list[bool]] = defaultdict(list)
    order = sorted(problems, key=lambda p: (len(p.facts), len(p.question)))
    for group in batches(order, batch):
        prefixes = [author.prefix(problem, []) for problem in group]
        for problem, text in zip(
            group, author.write(prefixes, ANSWER_TOKENS, to_end=True), strict=True
        ):
            hit = answer_of(text) == problem.answer
            for name in ("all", f"level {problem.level}", problem.family):
                right[name].append(hit)
    return {name: round(sum(hits) / len(hits), 4) for name, hits in sorted(right.items())}


@dataclass(frozen=True, slots=True)
class CandidateStep:
    """A step that the small model wrote after right ones, and whether it is right."""

    problem: GeneratedProblem
    index: int
    steps: tuple[str, ...]
    text: str
    right: bool


def candidates(small: Author, part: Part, seed: int, count: int) -> list[CandidateStep]:
    """What the small model writes, greedily, at every step."""
    found: list[CandidateStep] = []
    rng, source = random.Random(seed), stream(part, seed)
    while len(found) < count:
        asked = [place for problem in islice(source, 64) for place in positions(problem, rng)]
        for (problem, index, steps), step in zip(asked, own_steps(small, asked), strict=True):
            if step:
                right = is_right(problem, index, step)
                found.append(CandidateStep(problem, index, tuple(steps), step, right))
    return found


def judge(large: Author, found: Sequence[CandidateStep], batch: int = 125) -> dict[str, float]:
    """Separation of right from wrong steps by the expected digit and by likelihood."""
    digits = [large.tokenizer.convert_tokens_to_ids(str(d)) for d in range(10)]
    question = large.tokenizer.encode(
        f"{END}{USER}{JUDGE_QUESTION}{END}{ASSISTANT}", add_special_tokens=False
    )
    expected: list[float] = []
    lowest: list[float] = []
    for group in batches(found, batch):
        rows, spans = [], []
        for c in group:
            prefix = large.prefix(c.problem, c.steps)
            ending = DELIMITER if c.index < len(c.problem.facts) else ""
            step = large.tokenizer.encode(c.text + ending, add_special_tokens=False)
            rows.append(prefix + step + question)
            spans.append((len(prefix), len(prefix) + len(step)))
        width = max(map(len, rows))
        ids = torch.tensor([row + [large.pad] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            laws = large.model(ids).logits.log_softmax(-1)
        for row, (start, end), law, tokens in zip(rows, spans, laws, ids, strict=True):
            digit = law[len(row) - 1, digits].exp()
            expected.append(float((digit * torch.arange(10)).sum() / digit.sum()))
            said = law[start - 1 : end - 1].gather(1, tokens[start:end, None])
            lowest.append(float(said.min()))
    right = [c.right for c in found]
    slope, intercept = logistic_fit(lowest, right)
    plain = [i for i, c in enumerate(found) if not reflects(c.text)]
    plain_right = [right[i] for i in plain]
    return {
        "steps": len(found), "wrong": right.count(False), "digit_auc": auc(expected, right),
        "digit_auc_plain": auc([expected[i] for i in plain], plain_right),
        "likelihood_auc_plain": auc([lowest[i] for i in plain], plain_right),
        "likelihood_auc": auc(lowest, right), "intercept": intercept, "slope": slope,
    }  # fmt: skip


def hesitation(small: Author, found: Sequence[CandidateStep]) -> dict[str, float]:
    """Share of steps after which the small model's next tokens hold a keyword."""
    asked = [c for c in found if c.index < len(c.problem.facts) and not reflects(c.text)]
    texts: list[str] = []
    for group in batches(asked, 250):
        prefixes = [small.prefix(c.problem, [*c.steps, c.text + DELIMITER]) for c in group]
        texts += small.write(prefixes, HESITATION_TOKENS)
    return {
        name: share(reflects(t) for c, t in zip(asked, texts, strict=True) if c.right is right)
        for name, right in (("after_right", True), ("after_wrong", False))
    }


def repair(large: Author, found: Sequence[CandidateStep]) -> float:
    """Share of wrong steps after which the large model ends at the right answer."""
    asked = [
        c for c in found
        if not c.right and c.index < len(c.problem.facts) and not reflects(c.text)
    ]  # fmt: skip
    hits: list[bool] = []
    for group in batches(asked, 125):
        prefixes = [large.prefix(c.problem, [*c.steps, c.text + DELIMITER]) for c in group]
        texts = large.write(prefixes, ANSWER_TOKENS, to_end=True)
        hits += [answer_of(t) == c.problem.answer for c, t in zip(group, texts, strict=True)]
    return share(hits)


def share(hits: Iterable[bool]) -> float:
    listed = list(hits)
    return sum(listed) / len(listed) if listed else math.nan


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Probability that a right step scores above a wrong one; ties count half."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks, i = [0.0] * len(scores), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and scores[order[j + 1]] == scores[order[i]]:
            j += 1
        for k in range(i, j + 1):
            ranks[order[k]] = (i + j) / 2 + 1
        i = j + 1
    n = sum(right)
    wrong = len(right) - n
    if not n or not wrong:
        return math.nan
    total = sum(rank for rank, hit in zip(ranks, right, strict=True) if hit)
    return (total - n * (n + 1) / 2) / (n * wrong)


def logistic_fit(scores: Sequence[float], right: Sequence[bool]) -> tuple[float, float]:
    """(slope, intercept) of P(right) = 1 / (1 + exp(-(intercept + slope·score)))."""
    x, y = torch.tensor(scores).double(), torch.tensor(right).double()
    weights = torch.zeros(2, dtype=torch.double, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        z = weights[1] + weights[0] * x
        value = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
        value = value + 1e-4 * weights.square().sum()
        value.backward()
        return value

    solver.step(loss)
    slope, intercept = weights.detach().tolist()
    return slope, intercept


def batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


@torch.inference_mode()
def acceptance(
    large: Author, draft: Author, count: int, *, part: Part = "dev", seed: int = 0
) -> float:
    """Mean overlap of both models' laws, at temperature 1, along what the large one then says.

    The overlap, the sum of the smaller probabilities, is the chance that a token drawn from the
    draft model is accepted (Leviathan et al. 2211.17192, theorem 3.5).
    """
    prompts = [large.prefix(problem, []) for problem in draw(part, seed, count)]
    total, places = 0.0, 0
    torch.manual_seed(seed)
    for group in batches(prompts, 50):
        said = large.continued(group, ANSWER_TOKENS, to_end=True, temperature=1.0)
        for prompt, reply in zip(group, said, strict=True):
            ids = torch.tensor([prompt + reply])
            laws = [
                author.model(ids).logits[0, len(prompt) - 1 : -1].softmax(-1)
                for author in (large, draft)
            ]
            total += float(torch.minimum(*laws).sum())
            places += len(reply)
    return total / places


def report(
    small: Author | None, large: Author | None, part: Part, seed: int, count: int
) -> dict[str, Any]:
    """All figures of the pair (or of the half that is given)."""
    problems = draw(part, seed, count)
    new = draw(part, seed + 1, count // 2, new_wordings=True)
    result: dict[str, Any] = {}
    for name, author in (("small", small), ("large", large)):
        if author is not None:
            result[name] = {
                "accuracy": accuracy(author, problems),
                "new_wordings": accuracy(author, new)["all"],
            }
    if small is not None:
        found = candidates(small, part, seed, 4 * count)
        result["small"]["step_accuracy"] = share(c.right for c in found if not reflects(c.text))
        result["small"]["hesitation"] = hesitation(small, found)
        if large is not None:
            result["large"]["judge"] = judge(large, found)
            result["large"]["repair"] = repair(large, found)
    return result
