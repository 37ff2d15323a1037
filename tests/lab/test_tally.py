from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, Question
from deploy.evaluation.evaluation_log import EvaluationLog
from deploy.lab.tally import Tally, above_coin, mean_interval, rows, tally
from orchestrator.types import Step
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record

pytestmark = pytest.mark.asyncio

POLICIES = ("large-only", "small-only", "coin:large_probability=0.5", "specreason")
SHARES = {"large-only": (0, 8), "small-only": (8, 0), "coin:large_probability=0.5": (4, 4)}
RIGHT = {"large-only": 4, "small-only": 1, "coin:large_probability=0.5": 2, "specreason": 4,
         "bild:rollback=0": 4, "bild:rollback=1.5": 3, "cascade": 2}  # fmt: skip


async def write(
    folder: Path,
    policies: tuple[str, ...] = POLICIES,
    ms: float = 100,
    kind: str = "",
    params: dict[str, Any] | None = None,
    method: str = "vanilla",
) -> None:
    recording, *_ = await record(SpecReason(threshold=7), scores=(9, 3))
    problems = [Question(f"{n}?", str(n)) for n in range(4)]
    log = EvaluationLog(
        folder / "rows.jsonl",
        {"problems": f"gym:{kind or folder.name}:1", "seed": 0, "concurrency": 1, "max_tokens": 9,
         "speculation": method, "transport": "in-process",
         "pair": {"params": params or {}}},
        [Candidate.parse(policy) for policy in policies],
        problems,
    )  # fmt: skip
    for index in range(len(problems)):
        turn = []
        for policy in policies:
            small, large = SHARES.get(policy, (6, 2))
            steps = tuple(
                Step(author, "x", kept, tokens, 1.0)
                for author, kept, tokens in (
                    ("small", True, small), ("small", False, 50), ("large", True, large),
                )
            )  # fmt: skip
            slow, right = 2 if policy == "large-only" else 1, index < RIGHT[policy]
            answer = EvaluatedAnswer("1", steps=steps, correct=right, ms=ms * slow)
            turn.append(replace(answer, recording=lambda: recording))
        log.add(index, turn)
    log.close()


async def test_a_coin_is_taken_on_the_problems_that_both_answered(tmp_path: Path) -> None:
    tallies = [
        Tally("small-only", {("a", 0): False, ("a", 1): True}, kept={
            ("a", 0): Counter(small=8), ("a", 1): Counter(small=8)}),
        Tally("coin:large_probability=0.5", {("a", 0): True, ("a", 1): True}, kept={
            ("a", 0): Counter(small=2, large=6), ("a", 1): Counter(small=8)}),
        Tally("large-only", {("a", 0): True, ("a", 1): True}, kept={
            ("a", 0): Counter(large=8), ("a", 1): Counter(large=8)}),
    ]  # fmt: skip
    one = Tally("x", {("a", 0): True}, kept={("a", 0): Counter(small=5, large=3)})
    assert above_coin(one, tallies) == [pytest.approx(0.5)]  # half way between 0 and 6 of 8
    one.right["a", 2], one.kept["a", 2] = False, Counter(large=80)  # which no coin answered
    assert above_coin(one, tallies) == [pytest.approx(0.5)]


async def test_a_coin_at_any_share(tmp_path: Path) -> None:
    await write(tmp_path / "gsm")
    tallies = tally([tmp_path / "gsm"])
    for share, accuracy in ((0, 0.25), (0.25, 0.375), (0.5, 0.5), (0.75, 0.75), (1, 1)):
        perfect = Tally("perfect", right=dict.fromkeys(tallies[0].right, True))
        kept = Counter(large=round(100 * share), small=round(100 * (1 - share)))
        perfect.kept.update(dict.fromkeys(perfect.right, kept))
        differences = above_coin(perfect, tallies)
        assert sum(differences) / len(differences) == pytest.approx(1 - accuracy)
    twin = Tally("coin:large_probability=0.01", right=dict(tallies[1].right))
    twin.kept.update(tallies[1].kept)  # it drew no large token, as the small model alone
    assert len(above_coin(twin, [*tallies, twin])) == len(twin.right)
    specreason = [one for one in tallies if one.label == "specreason"]
    assert above_coin(specreason[0], specreason) == []


async def test_a_row_says_what_a_policy_gains(baton: Any, tmp_path: Path) -> None:
    await write(tmp_path / "gsm")
    await write(tmp_path / "legs")
    found = {row["policy"]: row for row in rows(tally([tmp_path / "gsm", tmp_path / "legs"]))}
    assert found["specreason"]["problems"] == 8
    assert found["specreason"]["accuracy"][0] == 1
    assert found["specreason"]["to_large"][0] == 0
    assert found["specreason"]["above_coin"][0] == pytest.approx(1 - 0.375)  # a quarter is large
    assert found["small-only"]["to_large"][0] == pytest.approx(-0.75)
    assert found["coin:large_probability=0.5"]["above_coin"] is None
    ran = baton("lab", "tally", str(tmp_path / "gsm"), str(tmp_path / "legs"))
    assert ran.status == 0, ran.err
    assert "+62.5 [" in ran.out


async def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says() -> None:
    assert mean_interval([]) == (-1.0, 1.0)
    low, high = mean_interval([0.0] * 9)
    assert low < 0 < high
    random, held = np.random.default_rng(1), 0
    for _ in range(200):
        low, high = mean_interval((random.random(60) < 0.3).astype(float).tolist())
        held += low <= 0.3 <= high
    assert held >= 180
