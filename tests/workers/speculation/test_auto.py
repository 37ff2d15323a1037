"""`auto`: what it chooses from measured rounds, and that its changes alter no text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.types import Sampling, StopCriteria
from tests.workers.conftest import network_of
from tests.workers.engine.local import ask, run
from tests.workers.speculation.exact import agrees
from tests.workers.speculation.loops import (
    begin,
    check_caches,
    decoder,
    law_of_three,
    stock_tokens,
    tiny,
)
from workers.engine.loading import load
from workers.model.target import Target
from workers.model.tree import Row
from workers.speculation import METHODS
from workers.speculation.auto import FEWEST, MARGIN, STALE, TRIAL, Auto, Chooser
from workers.speculation.decode import Decoder
from workers.speculation.method import Method

LENGTHS = [(0,), (1, 2, 4, 8)]


class Machine:
    """A deployment without a model: acceptance of each candidate and seconds of a round."""

    def __init__(self, rate: float, seconds: Callable[[int, int, int], float]) -> None:
        self.rate, self.seconds, self.rng = rate, seconds, random.Random(0)
        self.chooser = Chooser(LENGTHS)
        self.chosen: list[tuple[int, int]] = []

    def serve(self, rounds: int, rows: int = 1) -> tuple[int, int]:
        """The choice after so many rounds."""
        for _ in range(rounds):
            choice = self.chooser.choose()
            drafts = [self.draft(choice[1]) for _ in range(rows)]
            self.chooser.learn(choice, self.seconds(*choice, rows), drafts)
            self.chosen.append(choice)
        return self.chooser.choose()

    def draft(self, length: int) -> tuple[int, int]:
        taken = 0
        while taken < length and self.rng.random() < self.rate:
            taken += 1
        return length, taken


def step(number: int, length: int, rows: int) -> float:
    """A target pass of 10 ms that reads 6 tokens for nothing, a draft of 1 ms a token."""
    return 10.0 + 1.0 * length + 5.0 * max(0, rows * (length + 1) - 6)


def test_every_candidate_is_tried_at_both_ends_first() -> None:
    machine = Machine(0.9, step)
    machine.serve(3 * TRIAL - 1)
    assert machine.chooser.due
    machine.serve(1)
    assert not machine.chooser.due
    assert machine.chosen == [(0, 0)] * TRIAL + [(1, 1)] * TRIAL + [(1, 8)] * TRIAL


@pytest.mark.parametrize(("rows", "rounds"), [(1, TRIAL), (2, 4), (4, FEWEST), (64, FEWEST)])
def test_a_trial_of_many_rows_is_short(rows: int, rounds: int) -> None:
    """A round of long drafts takes them four times as long as plain decoding, or more."""
    chooser = Chooser(LENGTHS, rows)
    assert chooser.due == [(0, 0)] * rounds + [(1, 1)] * rounds + [(1, 8)] * rounds


def test_a_candidate_far_too_slow_at_its_shortest_is_not_tried_at_its_longest() -> None:
    machine = Machine(0.5, lambda number, length, rows: 1.0 + 2 * length)
    assert machine.serve(200) == (0, 0)
    assert machine.chosen[: 3 * TRIAL] == [(0, 0)] * TRIAL + [(1, 1)] * TRIAL + [(0, 0)] * TRIAL
    assert all(length < 8 for _, length in machine.chosen)


@pytest.mark.parametrize(("rate", "best"), [(0.9, (4,)), (0.5, (1, 2)), (0.02, (0,))])
def test_the_length_follows_acceptance(rate: float, best: tuple[int, ...]) -> None:
    machine = Machine(rate, lambda number, length, rows: 10.0 + 1.5 * length + 9 * (length > 4))
    number, length = machine.serve(400)
    assert (length if number else 0) in best


def test_speculation_ends_where_the_batch_makes_it_a_loss() -> None:
    assert Machine(0.7, step).serve(200, rows=1)[0] == 1
    assert Machine(0.7, step).serve(200, rows=8)[0] == 0


def test_what_is_known_is_of_one_batch_size() -> None:
    loop, prompts = automatic(8, random_choices=False), [[i + 1, 5, 9] for i in range(8)]
    for size in (1, 2, 3, 5, 8):
        generate(loop, prompts[:size], 4)
    assert isinstance(loop.method, Auto)
    assert set(loop.method.choosers) == {0, 1, 2, 3}
    assert not loop.method.converged


def test_prompts_that_change_are_noticed() -> None:
    machine = Machine(0.9, step)
    assert machine.serve(300)[0] == 1
    machine.rate = 0.0
    assert machine.serve(300)[0] == 0
    machine.rate = 0.9
    assert machine.serve(STALE + 200)[0] == 1


def test_a_small_promise_changes_nothing() -> None:
    """Else two methods as good as each other would take turns."""
    gain = 1 + 0.5 * (MARGIN - 1)
    machine = Machine(0.0, lambda number, length, rows: 1 / gain if number else 1.0)
    assert machine.serve(200) == (0, 0)


def test_a_moment_s_load_is_forgiven() -> None:
    machine = Machine(0.9, step)
    machine.serve(100)
    choice = machine.chooser.choose()
    machine.chooser.learn(choice, 1000.0, [(choice[1], 0)])
    assert machine.serve(20)[0] == 1


# The method ------------------------------------------------------------------------------


def test_drafts_that_end_early_are_no_full_ones() -> None:
    """Nine of ten end behind their first token, accepted; the tenth goes all the way."""
    machine = Machine(0.0, lambda number, length, rows: 2.9 if length == 8 else 1.0 + 0.5 * length)
    turn = iter(range(10**6))
    machine.draft = lambda length: (  # type: ignore[method-assign]
        length,
        length if next(turn) % 10 == 0 else min(1, length),
    )
    assert machine.serve(400) != (1, 8)  # 2.7 tokens in the time of 2.9


def test_a_draft_is_told_as_deep_as_it_could_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    surest = {"method": "chain", "threshold": 1}  # ends behind its first token
    loop = automatic(slots=1, candidates=[surest], lengths=[4], random_choices=False)
    told: list[Any] = []
    monkeypatch.setattr(Chooser, "choose", lambda self: (1, 4))
    monkeypatch.setattr(Chooser, "learn", lambda *args: told.extend(args[3]))
    (said,) = generate(loop, [[5, 9, 2, 7]], 12)
    possible = [depth for depth, _ in told]
    assert set(possible[:-4]) == {4}
    assert possible[-1] < 4  # near the end there is no room for more
    assert len(said) == 12
    assert max(accepted for _, accepted in told) <= 1


CANDIDATES = ["lookup", "chain", "recursive-s", {"method": "recursive-c", "branching": [2, 2]}]


def ticking(seed: int) -> Callable[[], float]:
    """A clock that makes up its mind anew at every look: methods change all the time."""
    rng, now = random.Random(seed), 0.0

    def clock() -> float:
        nonlocal now
        now += rng.random() ** 4
        return now

    return clock


def automatic(
    slots: int = 8,
    *,
    seed: int = 0,
    vocabulary: int = 400,
    random_choices: bool = True,
    **options: Any,
) -> Decoder:
    """A loop with `auto`, which may choose any candidate at any time instead of trials first."""
    given = {"draft": "other", "candidates": CANDIDATES, **options}
    loop = decoder("auto", given, slots=slots, vocabulary=vocabulary)
    method = loop.method
    assert isinstance(method, Auto)
    method.clock = ticking(seed)
    rng = random.Random(seed)

    class Random(Chooser):
        def choose(self) -> tuple[int, int]:
            number = rng.randrange(len(self.known))
            return number, rng.choice(self.known[number].lengths)

    if random_choices:
        lengths = [known.lengths for known in method._chooser.known]
        method.choosers = {size: Random(lengths) for size in range(10)}
    return loop


def test_greedy_tokens_are_those_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    asked = [torch.randint(0, 400, (3 + i % 9,), generator=generator).tolist() for i in range(12)]
    expected = stock_tokens(tiny(), asked, 20)
    loop = automatic(12)
    assert generate(loop, asked, 20) == expected
    assert loop.method.stats()["switches"] > 5
    alone = automatic(1, seed=1)
    assert [generate(alone, [prompt], 20)[0] for prompt in asked] == expected


def test_sampled_tokens_follow_the_law_of_the_model() -> None:
    vocabulary, draws, prompt, warm = 5, 400, [1, 2, 3], Sampling(1.0, seed=5_000)
    loop = automatic(draws, vocabulary=vocabulary, lengths=[1, 2])
    counts = np.zeros((vocabulary,) * 2)
    for output in generate(loop, [prompt] * draws, 6, sampling=warm):
        counts[tuple(output[2:4])] += 1
    law = law_of_three(loop.target.model, prompt, warm).sum(0)
    agrees(counts.ravel(), law.ravel())


def test_rows_come_and_go_and_caches_stay_right() -> None:
    loop, prompts = automatic(), [[5, 9, 2, 7], [8] * 12, [1, 2, 3]]
    rows: list[Row] = []
    for slot, prompt in enumerate(prompts):  # one more after every two rounds
        rows.append(begin(loop, 2 * slot, prompt, room=30))
        for _ in range(2):
            loop.step(loop.rows)
            check_caches(loop)
    loop.leave(rows[1])
    while rows[0].remaining_tokens > 0 and rows[2].remaining_tokens > 0:
        loop.step(loop.rows)
        check_caches(loop)
    for row, prompt, said in zip(rows, prompts, stock_tokens(tiny(), prompts, 30), strict=True):
        assert row.ids[len(prompt) :] == said[: len(row.ids) - len(prompt)]


def test_rows_that_join_while_others_draft_are_no_rejected_drafts() -> None:
    loop, prompts = automatic(draft="same", candidates=["chain"]), [[5, 9, 2, 7], [8] * 12]
    rows, late = [begin(loop, 0, prompts[0], room=30)], list[Row]()

    def serve() -> None:
        if len(rows) == 1:
            rows.append(begin(loop, 3, prompts[1], room=30))
            late.append(rows[1])

    loop.pause_with(serve)
    while any(row.remaining_tokens > 0 for row in rows):
        late.clear()
        loop.step([row for row in rows if row.remaining_tokens > 0], late)
        check_caches(loop)
    for row, prompt, said in zip(rows, prompts, stock_tokens(tiny(), prompts, 30), strict=True):
        assert row.ids[len(prompt) :] == said[: len(row.ids) - len(prompt)]
    assert isinstance(loop.method, Auto)
    known = [known for one in loop.method.choosers.values() for known in one.known]
    depths = [depth for one in known for depth in one.depths]
    assert depths
    assert all(tried == taken for tried, taken in depths)


def test_without_a_draft_model_it_looks_up() -> None:
    auto = Auto(
        Target(network_of(tiny()), slots=1, max_len=64),
        lambda name: pytest.fail("there is no model to load"),
    )
    assert [type(method) for method in auto.methods] == [Method, METHODS["lookup"]]


async def test_a_worker_counts_what_it_does(checkpoint: Path, draft_checkpoint: Path) -> None:
    speculation = {"method": "auto", "draft": str(draft_checkpoint)}
    worker, plain = load(checkpoint, speculation=speculation, max_len=200), load(checkpoint)
    try:
        said = [(await run(one, ask(), StopCriteria(60))).segment.tokens for one in (worker, plain)]
        assert said[0] == said[1]
        stats = worker.stats()
        assert stats["plain_rounds"] + stats["drafted_rounds"] == stats["rounds"]
        assert stats["drafted_rounds"] > 0
        assert stats["switches"] > 0
    finally:
        worker.close()
        plain.close()
