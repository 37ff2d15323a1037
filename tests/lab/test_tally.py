from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deploy.lab.tally import Tally, above_coin, tally
from tests.lab.test_real_pair import write

pytestmark = pytest.mark.asyncio


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
    assert Tally("x:y=1").policy == "x"
