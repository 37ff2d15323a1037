"""Problems turned into training documents: chains of thought with errors, repairs and verdicts.

A document is a token tree (`batches.TrainingDocument`). Its main chain is a conversation: question,
thought, answer. Some chains hold a wrong step (never trained as something to say) followed by a
reflection that works the step out again and compares, which is far easier than to judge blind.
Side branches that later tokens cannot see hold more wrong steps with their reflection or, for
the large model, the judge's question and its digit: 9 after right steps, 0 after wrong ones.
Most wrong steps are the small model's own (`harvest.py`), the rest are planted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from deploy.evaluation.builtin.problems import Part, part_of, stream
from deploy.evaluation.builtin.sketch import Fact, GeneratedProblem, apply
from deploy.lab.pair.batches import TrainingDocument
from deploy.lab.pair.mistakes import Mistakes, Reflection, load_mistakes
from deploy.lab.pair.noise import disturb
from deploy.lab.pair.steps import (
    DELIMITER,
    plant_mistake,
    plant_reflection,
    repair_text,
    step_text,
    wrong_from,
)
from deploy.lab.pair.vocabulary import ASSISTANT, CLOSE, END, SYSTEM, THINK, USER
from deploy.lab.pair.words import WORDS

JUDGE_QUESTION = "Score?"


class _Builder:
    """A document under construction: its rows are those of `TrainingDocument`, one a token."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self.tokenizer, self.rng = tokenizer, rng
        self.rows: list[list[Any]] = []  # token, target, weight, position, branch, flag
        self.branch = self.opened = 0
        self.main = self.last = -1  # the last token of the main chain, and of the current branch

    def add(self, ids: Sequence[int], weight: float = 0.0, flags: Sequence[int] = ()) -> None:
        """Append tokens to the current branch; weight 0 means that they are only read."""
        for offset, token in enumerate(ids):
            position = 0
            if self.last >= 0:
                before = self.rows[self.last]
                position = before[3] + 1
                if weight:
                    before[1:3] = token, weight
            flag = flags[offset] if flags else -1
            self.rows.append([token, -100, 0.0, position, self.branch, flag])
            self.last = len(self.rows) - 1
        if self.branch == 0:
            self.main = self.last

    def control(self, token: str, weight: float = 0.0) -> None:
        identity = self.tokenizer.token_to_id(token)
        assert identity is not None
        self.add([identity], weight)

    def text(self, text: str, weight: float = 0.0, wrong_from: int | None = None) -> None:
        """Append a text; `wrong_from` (a character index) flags what comes from there on."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        flags: list[int] = []
        if wrong_from is not None:
            flags = [int(end > wrong_from) for _, end in encoding.offsets]
        self.add(encoding.ids, weight, flags)

    def right(self, text: str) -> None:
        """Append a text that is learned and holds no error."""
        self.text(text, 1.0, 10**6)

    def turn(self, role: str, content: str) -> None:
        self.control(role)
        self.text(content)
        self.control(END)

    def judge_turn(self, digit: str) -> None:
        self.control(END)
        self.turn(USER, JUDGE_QUESTION)
        self.control(ASSISTANT)
        self.text(digit, 1.5)

    @contextmanager
    def side_branch(self) -> Iterator[None]:
        """Append to a branch that later tokens cannot see."""
        self.opened += 1
        self.branch, self.last = self.opened, self.main
        yield
        self.branch, self.last = 0, self.main

    def finish(self) -> TrainingDocument:
        return TrainingDocument(*map(list, zip(*self.rows, strict=True)))


class DocumentWriter:
    """Writes the documents of one model of the pair.

    `judge`: whether the judge's turns are taught (the large model). `mistakes`: problems with
    the small model's own wrong steps; None before there is a small model.

    The large model learns to find errors, so it sees many, some of them planted, and reflections
    that are wrong themselves. The small model cannot find most of its errors, but it can learn
    where it tends to err: it sees its own, greedy and sampled.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, judge: bool, mistakes: Sequence[Mistakes] | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.judge, self.mistakes = tokenizer, judge, mistakes
        if judge and mistakes:
            self.mistakes = [m for m in mistakes if m.greedy or m.sampled]

    def documents(self, part: Part, seed: int) -> Iterator[TrainingDocument]:
        """An endless, reproducible stream of documents."""
        rng = random.Random(f"documents/{part}/{seed}")
        fresh = stream(part, seed)
        while True:
            dice = rng.random()
            if dice < 0.02:
                yield self._declined(rng)
            elif dice < 0.08:
                yield self._follow_up(next(fresh), rng)
            elif self.mistakes and dice < (0.48 if self.judge else 0.65):
                known = rng.choice(self.mistakes)
                yield self.solved(known.problem, rng, known)
            else:
                yield self.solved(next(fresh), rng, None)

    def solved(
        self, problem: GeneratedProblem, rng: random.Random, known: Mistakes | None
    ) -> TrainingDocument:
        """One problem, worked out, with the mistakes known of it; None plants some."""
        builder = self._conversation(rng)
        builder.turn(USER, disturb(problem.question, rng))
        self._thought(builder, problem, known)
        return builder.finish()

    def _conversation(self, rng: random.Random) -> _Builder:
        builder = _Builder(self.tokenizer, rng)
        if rng.random() < 0.12:
            builder.turn(SYSTEM, rng.choice(WORDS["system"]))
        if rng.random() < 0.06:
            earlier = next(stream("train", rng.randrange(2**31)))
            builder.turn(USER, earlier.question)
            builder.turn(ASSISTANT, WORDS["answer"].format(v=earlier.answer))
        return builder

    def _follow_up(self, problem: GeneratedProblem, rng: random.Random) -> TrainingDocument:
        """A second question about the first one's answer ("now add 5")."""
        builder = self._conversation(rng)
        builder.turn(USER, problem.question)
        builder.turn(ASSISTANT, WORDS["answer"].format(v=problem.answer))
        value = int(problem.answer)
        for attempt in count():
            operation = rng.choice("+-*" if 1 < value < 200 else "+-" if value > 1 else "+")
            # After 0 or 1 few numbers make sense; more are tried until one is for training.
            most = 9 if operation == "*" else min(max(value, 9), 200) + attempt
            n = rng.randint(2 if operation == "*" else 1, most)
            if operation == "-" and n > value:
                continue
            if part_of(f"({problem.key}){operation}{n}") == "train":
                break
        fact = Fact(f"{value}{operation}{n}", apply(value, operation, n))
        question = rng.choice(WORDS["follow_up"][operation]).format(n=n)
        answer = str(fact.value)
        follow = GeneratedProblem(question, answer, "follow-up", problem.level, "", (fact,))
        builder.turn(USER, question)
        self._thought(builder, follow, None)
        return builder.finish()

    def _declined(self, rng: random.Random) -> TrainingDocument:
        """A question far outside: an honest sentence."""
        builder = self._conversation(rng)
        question = rng.choice(WORDS["unknown_topic"]).format(
            p=rng.choice(WORDS["places"]),
            t=rng.choice(WORDS["topics"]),
            l=rng.choice(WORDS["languages"]),
            c=rng.choice(WORDS["adjectives"]),
        )
        builder.turn(USER, question)
        builder.control(ASSISTANT)
        builder.control(THINK)
        builder.text(WORDS["decline_step"], 0.3)
        builder.control(CLOSE, 0.3)
        builder.text(WORDS["decline"], 0.3)
        builder.control(END, 0.3)
        return builder.finish()

    def _thought(
        self, builder: _Builder, problem: GeneratedProblem, known: Mistakes | None
    ) -> None:
        rng = builder.rng
        builder.control(ASSISTANT)
        builder.control(THINK)
        steps = len(problem.facts) + 1
        planted = -1
        if known is None and (self.judge or not self.mistakes) and rng.random() < 0.25:
            planted = rng.randrange(steps)
        slips = 0.35 if self.judge else 0.45
        slipped = False
        for index in range(steps):
            last = index + 1 == steps
            written = (known.greedy, known.sampled) if known else ()
            mistakes = [wrong[index] for wrong in written if index in wrong]
            if index == planted:
                mistakes = [plant_mistake(problem, index, rng)]
            slip = ""
            for mistake in mistakes:
                if not slipped and not last and rng.random() < slips:
                    slip, slipped = mistake, True
                    continue
                if self.judge:
                    with builder.side_branch():
                        start = wrong_from(problem, index, mistake)
                        builder.text(mistake + ("" if last else DELIMITER), 0.0, start)
                        builder.judge_turn("0")
                if not last and rng.random() < (0.5 if self.judge else 0.8):
                    _repairing_branch(builder, problem, index, mistake)
            if self.judge and not last:
                for reflection in _reflections(problem, known, index, rng):
                    _reflection_branch(builder, problem, reflection)
            if slip:
                builder.text(slip + DELIMITER, 0.0, wrong_from(problem, index, slip))
                self._verdict(builder, "0", 0.8)
                builder.right(repair_text(problem, index, slip, rng) + DELIMITER)
            else:
                builder.right(step_text(problem, index, rng) + ("" if last else DELIMITER))
                if not last and rng.random() < 0.05:
                    self._verdict(builder, "9", 0.3)
                    fact = problem.facts[index]
                    confirm = rng.choice(WORDS["right"]).format(s=fact.equation, v=fact.value)
                    builder.right(confirm + DELIMITER)
            self._verdict(builder, "9", 0.4)
        builder.control(CLOSE, 1.0)
        builder.text(WORDS["answer"].format(v=problem.answer), 0.5)
        builder.control(END, 0.5)

    def _verdict(self, builder: _Builder, digit: str, share: float) -> None:
        """The judge's turn on the main chain's last step, for a share of the steps."""
        if self.judge and builder.rng.random() < share:
            with builder.side_branch():
                builder.judge_turn(digit)


def _reflections(
    problem: GeneratedProblem, known: Mistakes | None, index: int, rng: random.Random
) -> list[Reflection]:
    """At most two reflections about a step; now and then a planted wrong one."""
    about = [r for r in known.reflections if r.index == index] if known else []
    if not about and rng.random() < 0.06:
        wrong = rng.random() < 0.5
        said = (plant_mistake if wrong else step_text)(problem, index, rng)
        about = [Reflection(index, said, plant_reflection(problem, index, said, rng), False)]
    return rng.sample(about, 2) if len(about) > 2 else about


def _repairing_branch(builder: _Builder, problem: GeneratedProblem, index: int, *said: str) -> None:
    with builder.side_branch():
        for mistake in said:
            builder.text(mistake + DELIMITER)
        builder.text(repair_text(problem, index, said[-1], builder.rng) + DELIMITER, 1.0)


def _reflection_branch(
    builder: _Builder, problem: GeneratedProblem, reflection: Reflection
) -> None:
    """A reflection, judged; a wrong one now and then repaired in its turn."""
    index, said, text = reflection.index, reflection.said, reflection.text
    if not reflection.right and builder.rng.random() < 0.2:
        _repairing_branch(builder, problem, index, said, text)
        return
    with builder.side_branch():
        builder.text(said + DELIMITER)
        start = 10**6 if reflection.right else wrong_from(problem, index, text)
        builder.text(text + DELIMITER, 0.0, start)
        builder.judge_turn("9" if reflection.right else "0")


def generated_documents(
    tokenizer_dir: Path, *, judge: bool, mistakes: Sequence[Path], seed: int
) -> Iterator[TrainingDocument]:
    """Documents of generated problems; `mistakes` are files that `harvest` wrote."""
    known = [row for path in mistakes for row in load_mistakes(path)] or None
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    return DocumentWriter(tokenizer, judge=judge, mistakes=known).documents("train", seed)


def texts(seed: int, problems: int) -> Iterator[str]:
    """Plain text of training documents, for the tokenizer."""
    rng = random.Random(f"texts/{seed}")
    source = stream("train", seed)
    for _ in range(problems):
        problem = next(source)
        yield problem.question
        for index in range(len(problem.facts) + 1):
            yield step_text(problem, index, rng) + DELIMITER
        fact = problem.facts[0]
        yield rng.choice(WORDS["right"]).format(s=fact.equation, v=fact.value) + DELIMITER
        yield rng.choice(WORDS["wrong"]).format(s=fact.equation, w=fact.value) + DELIMITER
        yield WORDS["answer"].format(v=problem.answer)
    for sentence in [*WORDS["system"], WORDS["decline"], WORDS["decline_step"], JUDGE_QUESTION]:
        for _ in range(max(1, problems // 20)):
            yield sentence
    for _ in range(max(1, problems // 2000)):
        yield from [
            *WORDS["unknown_topic"],
            *WORDS["before"],
            *WORDS["after"],
            *WORDS["asides"],
            " ".join(WORDS["fillers"]),
        ]
