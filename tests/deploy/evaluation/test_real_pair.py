"""The page of a real pair, from rows and recordings as `baton eval` leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question
from deploy.evaluation.evaluation_log import EvaluationLog
from deploy.evaluation.real_pair import Tally, coin_accuracy, judge_tokens, main, page, tally
from orchestrator.errors import ConfigError
from orchestrator.types import Step
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record

POLICIES = ("large-only", "small-only", "coin:large_probability=0.5", "specreason")
SHARES = {"large-only": (0, 8), "small-only": (8, 0), "coin:large_probability=0.5": (4, 4)}
RIGHT = {"large-only": 4, "small-only": 1, "coin:large_probability=0.5": 2, "specreason": 4}


async def write(folder: Path, policies: tuple[str, ...] = POLICIES, ms: float = 100) -> None:
    recording, _ = await record(SpecReason(threshold=7), scores=(9, 3))
    log = EvaluationLog(
        folder / "rows.jsonl",
        {"problems": f"gym:{folder.name}:1", "seed": 0, "concurrency": 1, "max_tokens": 9,
         "speculation": "vanilla", "transport": "in-process"},
        [Candidate.parse(policy) for policy in policies],
        recordings=True,
    )  # fmt: skip
    problems = [Question(f"{n}?", str(n)) for n in range(4)]
    log.resume(problems)
    for index, problem in enumerate(problems):
        turn = []
        for policy in policies:
            small, large = SHARES.get(policy, (6, 2))
            steps = tuple(
                Step(author, "x", kept, tokens, 1.0)
                for author, kept, tokens in (
                    ("small", True, small), ("small", False, 50), ("large", True, large),
                )
            )  # fmt: skip
            answer = EvaluatedAnswer("1", steps=steps, recording=recording)
            slow = 2 if policy == "large-only" else 1
            turn.append(EvaluationResult(index < RIGHT[policy], ms * slow, answer))
        log.add(index, problem, turn)
    log.close()


def cells(text: str, policy: str) -> list[str]:
    table = text.partition("\n## ")[0]  # predictions follow
    (line,) = [one for one in table.splitlines() if one.startswith(f"| {policy} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


async def test_every_column_is_what_the_rows_say(tmp_path: Path) -> None:
    for name in ("gsm", "legs", "latency"):
        await write(tmp_path / name)
    await write(tmp_path / "speculation", ("large-only",), ms=50)
    text = page(tmp_path, ["r1-1.5b-32b"])
    found = cells(text, "specreason")
    assert found[1].startswith("100.0 [")
    assert found[2].startswith("+0.0 [")
    assert found[3] == "25%"
    assert found[4] == "+62.5"  # a coin at 25 % lies between 25 % and 50 % right: at 37.5
    assert int(found[5]) == judge_tokens(next((tmp_path / "gsm").glob("00000-specreason-*")))
    assert int(found[5]) > 0
    assert found[6:8] == ["2.00x", "1.00x"]
    assert found[8].endswith("x")
    assert cells(text, "large-only, vanilla")[6:8] == ["2.00x", "1.00x"]
    assert "8 problems that every row answered, of `gym:gsm:1`, `gym:legs:1`" in text
    assert "Not measured yet" not in text


async def test_what_is_not_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation in it"):
        page(tmp_path, [])
    await write(tmp_path / "gsm")
    text = page(tmp_path, ["r1-1.5b-32b"])
    assert "Not measured yet: latency, speculation." in text
    assert cells(text, "specreason")[6] == "not measured"
    assert main([str(tmp_path), str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# A real pair")
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "page.md")]) == 1
    await write(tmp_path / "alone" / "kind", ("small-only",))
    with pytest.raises(ConfigError, match="no rows of large-only"):
        page(tmp_path / "alone", [])


async def test_a_coin_at_any_share(tmp_path: Path) -> None:
    await write(tmp_path / "gsm")
    tallies = tally({"gsm": tmp_path / "gsm"})
    for share, accuracy in ((0, 0.25), (0.25, 0.375), (0.5, 0.5), (0.75, 0.75), (1, 1)):
        assert coin_accuracy(share, tallies) == pytest.approx(accuracy)
    specreason = [one for one in tallies if one.label == "specreason"]
    assert coin_accuracy(0.3, specreason) is None
    assert Tally("x:y=1").policy == "x"
