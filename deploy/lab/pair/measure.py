"""What the embedded pair can do, measured on problems it never saw.

accuracy     greedy answers, by level and family
judge        the expected digit and the minimum log-probability against the exact checker, on all
             that the small model writes after right prefixes, reflections included (area under
             the ROC curve)
hesitation   how often the small model opens with a reflection keyword after its own steps
repair       how often the large one, continuing from a wrong step, ends at the right answer
acceptance   the chance that speculative sampling accepts a token of a draft model
cost         milliseconds a decoded token (`cost.py`)
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from scipy.stats import rankdata

from deploy.evaluation.builtin.problems import GeneratedProblem, Part, draw, stream
from deploy.lab.pair.cost import decode_cost
from deploy.lab.pair.documents import JUDGE_QUESTION
from deploy.lab.pair.harvest import Author, own_steps, step_places
from deploy.lab.pair.steps import DELIMITER, is_right, reflects
from deploy.lab.pair.vocabulary import ASSISTANT, END, USER
from workers.embedded.checkpoints import MODELS

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
class WrittenStep:
    """A step that the small model wrote after right ones (`before`), and whether it is right."""

    problem: GeneratedProblem
    index: int
    before: tuple[str, ...]
    text: str
    right: bool

    @property
    def concludes(self) -> bool:
        return self.index == len(self.problem.facts)


def written_steps(small: Author, part: Part, seed: int, count: int) -> list[WrittenStep]:
    """What the small model writes, greedily, in the place of each step; at least `count`."""
    steps: list[WrittenStep] = []
    rng, source = random.Random(seed), stream(part, seed)
    while len(steps) < count:
        places = [place for problem in islice(source, 64) for place in step_places(problem, rng)]
        for (problem, index, before), text in zip(places, own_steps(small, places), strict=True):
            if text:
                right = is_right(problem, index, text)
                steps.append(WrittenStep(problem, index, tuple(before), text, right))
    return steps


def judge(large: Author, steps: Sequence[WrittenStep], batch: int = 125) -> dict[str, float]:
    """Separation of right from wrong steps by the expected digit and by likelihood."""
    digits = [large.tokenizer.convert_tokens_to_ids(str(d)) for d in range(10)]
    question = large.tokenizer.encode(
        f"{END}{USER}{JUDGE_QUESTION}{END}{ASSISTANT}", add_special_tokens=False
    )
    expected: list[float] = []
    lowest: list[float] = []
    for group in batches(steps, batch):
        rows, spans = [], []
        for step in group:
            prefix = large.prefix(step.problem, step.before)
            text = step.text + ("" if step.concludes else DELIMITER)
            tokens = large.tokenizer.encode(text, add_special_tokens=False)
            rows.append(prefix + tokens + question)
            spans.append((len(prefix), len(prefix) + len(tokens)))
        width = max(map(len, rows))
        ids = torch.tensor([row + [large.pad] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            log_probs = large.model(ids).logits.log_softmax(-1)
        for row, (start, end), row_probs, tokens in zip(rows, spans, log_probs, ids, strict=True):
            digit = row_probs[len(row) - 1, digits].exp()
            expected.append(float((digit * torch.arange(10)).sum() / digit.sum()))
            of_step = row_probs[start - 1 : end - 1].gather(1, tokens[start:end, None])
            lowest.append(float(of_step.min()))
    right = [step.right for step in steps]
    slope, intercept = logistic_fit(lowest, right)
    plain = [i for i, step in enumerate(steps) if not reflects(step.text)]
    plain_right = [right[i] for i in plain]
    return {
        "steps": len(steps), "wrong": right.count(False), "digit_auc": auc(expected, right),
        "digit_auc_plain": auc([expected[i] for i in plain], plain_right),
        "likelihood_auc_plain": auc([lowest[i] for i in plain], plain_right),
        "likelihood_auc": auc(lowest, right), "intercept": intercept, "slope": slope,
    }  # fmt: skip


def hesitation(small: Author, steps: Sequence[WrittenStep]) -> dict[str, float]:
    """Share of steps after which the small model's next tokens hold a keyword."""
    plain = [step for step in steps if not step.concludes and not reflects(step.text)]
    hesitates: list[bool] = []
    for group in batches(plain, 250):
        texts = small.write([prefix_after(small, step) for step in group], HESITATION_TOKENS)
        hesitates += map(reflects, texts)
    return {
        name: share(hit for step, hit in zip(plain, hesitates, strict=True) if step.right is right)
        for name, right in (("after_right", True), ("after_wrong", False))
    }


def repair(large: Author, steps: Sequence[WrittenStep]) -> float:
    """Share of wrong steps after which the large model ends at the right answer."""
    wrong = [
        step for step in steps if not (step.right or step.concludes or reflects(step.text))
    ]  # fmt: skip
    hits: list[bool] = []
    for group in batches(wrong, 125):
        prefixes = [prefix_after(large, step) for step in group]
        texts = large.write(prefixes, ANSWER_TOKENS, to_end=True)
        hits += [
            answer_of(text) == step.problem.answer
            for step, text in zip(group, texts, strict=True)
        ]  # fmt: skip
    return share(hits)


def prefix_after(author: Author, step: WrittenStep) -> list[int]:
    """Token ids up to where the thought goes on behind a step."""
    return author.prefix(step.problem, [*step.before, step.text + DELIMITER])


def share(hits: Iterable[bool]) -> float:
    listed = list(hits)
    return sum(listed) / len(listed) if listed else math.nan


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Probability that a right step scores above a wrong one; ties count half."""
    n, wrong = sum(right), len(right) - sum(right)
    if not n or not wrong:
        return math.nan
    total = float(rankdata(scores)[list(right)].sum())
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
    """Mean overlap of both models' distributions at temperature 1, along the large one's answers.

    The overlap, the sum of the smaller probabilities, is the chance that a token drawn from the
    draft model is accepted (Leviathan et al. 2211.17192, theorem 3.5).
    """
    prompts = [large.prefix(problem, []) for problem in draw(part, seed, count)]
    total, places = 0.0, 0
    torch.manual_seed(seed)
    for group in batches(prompts, 50):
        replies = large.continued(group, ANSWER_TOKENS, to_end=True, temperature=1.0)
        for prompt, reply in zip(group, replies, strict=True):
            ids = torch.tensor([prompt + reply])
            probs = [
                author.model(ids).logits[0, len(prompt) - 1 : -1].softmax(-1)
                for author in (large, draft)
            ]
            total += float(torch.minimum(*probs).sum())
            places += len(reply)
    return total / places


def measure_published(
    part: Part, count: int, log: Callable[[str], None] = print, seed: int = 1
) -> None:
    """Log the figures of the published pair as JSON; the seed never changes."""
    figures: dict[str, Any] = {"cost": decode_cost(MODELS)}
    small, large = (Author(MODELS / name) for name in ("small", "large"))
    figures |= report(small, large, part, seed, count)
    if (MODELS / "draft" / "config.json").exists():
        rate = acceptance(large, Author(MODELS / "draft"), 200, part=part, seed=seed)
        figures["draft"] = {"acceptance": round(rate, 4)}
    log(json.dumps(figures, indent=2))


def report(small: Author, large: Author, part: Part, seed: int, count: int) -> dict[str, Any]:
    """Accuracy of both models, and what the large one makes of the small one's steps."""
    problems = draw(part, seed, count)
    new = draw(part, seed + 1, count // 2, new_wordings=True)
    figures: dict[str, Any] = {
        name: {
            "accuracy": accuracy(author, problems),
            "new_wordings": accuracy(author, new)["all"],
        }
        for name, author in (("small", small), ("large", large))
    }
    steps = written_steps(small, part, seed, 4 * count)
    plain_right = (step.right for step in steps if not reflects(step.text))
    figures["small"] |= {
        "step_accuracy": share(plain_right),
        "hesitation": hesitation(small, steps),
    }
    figures["large"] |= {"judge": judge(large, steps), "repair": repair(large, steps)}
    return figures
