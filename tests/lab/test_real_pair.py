"""The page of a real pair, from rows and recordings as `baton eval` leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question
from deploy.evaluation.evaluation_log import EvaluationLog
from deploy.lab.prediction import load_costs, predicted
from deploy.lab.real_pair import main, page
from deploy.lab.tally import judge_tokens
from orchestrator.errors import ConfigError
from orchestrator.types import Step
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record

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
    recording, _ = await record(SpecReason(threshold=7), scores=(9, 3))
    log = EvaluationLog(
        folder / "rows.jsonl",
        {"problems": f"gym:{kind or folder.name}:1", "seed": 0, "concurrency": 1, "max_tokens": 9,
         "speculation": method, "transport": "in-process",
         "pair": {"params": params or {}}},
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
    for name in ("gsm", "legs"):
        await write(tmp_path / name)
    await write(tmp_path / "latency", POLICIES[:3], kind="gsm")
    # On another day, when the machine was slower: each policy is held against its own run.
    await write(tmp_path / "latency-more", ("large-only", "specreason"), ms=200, kind="gsm")
    await write(tmp_path / "speculation", ("large-only",), ms=50, kind="gsm")
    text = page(tmp_path, ["r1-1.5b-32b"])
    found = cells(text, "specreason")
    assert found[1] == "8"
    assert found[2].startswith("100.0 [")
    assert found[3].startswith("+0.0 [")
    assert found[4].startswith("+75.0 [")
    assert found[5] == "25%"
    assert found[6].startswith("+62.5 [")  # a coin of 25 % is right at 37.5 %
    assert int(found[7]) == judge_tokens(next((tmp_path / "gsm").glob("00000-specreason-*")))
    assert int(found[7]) > 0
    assert found[8:10] == ["2.00x [2.00, 2.00]", "1.00x [1.00, 1.00]"]
    assert found[10].endswith("x")
    assert cells(text, "large-only, vanilla")[8:10] == ["2.00x [2.00, 2.00]", "1.00x"]
    assert "8 problems, of `gym:gsm:1`, `gym:legs:1`" in text
    assert "| policy | `gym:gsm:1` | `gym:legs:1` |" in text
    (each,) = [line for line in text.splitlines() if line.startswith("| specreason | 4 of 4, 25%")]
    assert each.count("4 of 4, 25%, +62.5 [") == 2
    assert "| large-only | 4 of 4, 100% | 4 of 4, 100% |" in text
    assert "Times are of 4 of the problems (`gym:gsm:1`)" in text
    assert "Not measured yet" not in text


async def test_a_policy_that_was_only_timed_has_a_row_of_the_timed_questions(
    tmp_path: Path,
) -> None:
    await write(tmp_path / "gsm", POLICIES[:3])
    await write(tmp_path / "latency", (*POLICIES[:2], "cascade"), kind="gsm")
    text = page(tmp_path, ["r1-1.5b-32b"])
    found = cells(text, "cascade")
    assert found[1:3] == ["4", "50.0 [15, 85]"]
    assert found[3].startswith("-50.0 [")
    assert found[4].startswith("+25.0 [")
    assert found[6].startswith("+6.2 [")  # between the models alone: 43.8 % at a share of 25 %
    assert found[8:11] == ["2.00x [2.00, 2.00]", "not measured", "not measured"]


async def test_what_a_lossy_method_costs_in_answers_is_a_row_without_times(tmp_path: Path) -> None:
    await write(tmp_path / "gsm", POLICIES[:3])
    lossy = tmp_path / "relaxed-gsm"
    await write(lossy, ("large-only",), kind="gsm", method="relaxed (lossy)")
    text = page(tmp_path, ["r1-1.5b-32b"])
    found = cells(text, "large-only, relaxed (lossy)")
    exact = cells(text, "large-only")
    assert found[1:3] == exact[1:3] == ["4", "100.0 [51, 100]"]
    assert found[3].startswith("+0.0 [")
    assert found[4:6] == exact[4:6]
    assert found[5] == "100%"
    assert not any(found[6:])
    await write(tmp_path / "relaxed-legs", ("large-only",), method="relaxed:delta=0.1 (lossy)")
    with pytest.raises(ConfigError, match="speculation"):
        page(tmp_path, [])


async def test_another_machine_has_a_table_of_its_own_times(tmp_path: Path) -> None:
    await write(tmp_path / "gsm", POLICIES[:3])
    alone = page(tmp_path, [])
    await write(tmp_path / "latency.amx", ("large-only", "specreason"), ms=300, kind="gsm")
    await write(
        tmp_path / "speculation.amx", ("large-only",), ms=100, kind="gsm", method="chain:gamma=7"
    )
    await write(tmp_path / "relaxed.amx", ("large-only",), ms=50, kind="gsm", method="r (lossy)")
    text = page(tmp_path, [])
    before, _, after = text.partition("## Times on another machine: amx")
    assert before.strip() == alone.strip()
    file = tmp_path / "relaxed.amx" / "rows.jsonl"
    file.write_text(file.read_text().replace('"max_tokens": 9', '"max_tokens": 8', 1))
    with pytest.raises(ConfigError, match="max_tokens"):
        page(tmp_path, [])
    file.unlink()
    (tmp_path / "speculation.amx" / "rows.jsonl").rename(tmp_path / "rows.jsonl")
    assert "| specreason | 2.00x [2.00, 2.00] | not measured |" in page(tmp_path, [])
    head = (tmp_path / "rows.jsonl").read_text().splitlines()[0]
    (tmp_path / "latency.amx" / "rows.jsonl").write_text(f"{head}\n")
    assert "`latency.amx` has no rows of large-only yet" in page(tmp_path, [])
    assert [line for line in after.splitlines() if line.startswith("| ")][2:] == [
        "| large-only | 1.00x [1.00, 1.00] | 0.33x [0.33, 0.33] |",
        "| specreason | 2.00x [2.00, 2.00] | 0.67x [0.67, 0.67] |",
        "| large-only, chain:gamma=7 | 3.00x [3.00, 3.00] | 1.00x |",
        "| large-only, r (lossy) | 6.00x [6.00, 6.00] | 2.00x [2.00, 2.00] |",
    ]


async def test_more_questions_for_some_policies_are_said(tmp_path: Path) -> None:
    await write(tmp_path / "gsm")
    await write(tmp_path / "gsm-further", POLICIES[:1], kind="legs")
    text = page(tmp_path, [])
    assert (
        "4 or 8 problems (accuracies of unlike numbers do not compare; differences do), of" in text
    )


async def test_a_policy_is_added_in_a_folder_of_its_own(tmp_path: Path) -> None:
    await write(tmp_path / "gsm", POLICIES[:3])
    await write(tmp_path / "gsm-more", ("large-only", *POLICIES[3:]), kind="gsm")
    parted = page(tmp_path, ["r1-1.5b-32b"])
    await write(tmp_path / "whole" / "gsm")
    assert parted == page(tmp_path / "whole", ["r1-1.5b-32b"])
    await write(tmp_path / "gsm-again", POLICIES[3:], kind="gsm")
    with pytest.raises(ConfigError, match=r"specreason answered problem 0 of gym:gsm:1 in another"):
        page(tmp_path, [])


async def test_a_policy_that_loses_nothing_is_set_against_no_coin(tmp_path: Path) -> None:
    exact, lossy = "bild:rollback=0", "bild:rollback=1.5"
    await write(tmp_path / "gsm", (*POLICIES[:3], exact, lossy))
    text = page(tmp_path, [])
    assert cells(text, exact)[6] == ""
    assert cells(text, lossy)[6] != ""
    assert text.count("by construction") == 1


async def test_evaluations_that_were_not_made_alike_stand_on_no_page_together(
    tmp_path: Path,
) -> None:
    await write(tmp_path / "gsm")
    await write(tmp_path / "legs")
    rows = tmp_path / "legs" / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"max_tokens": 9', '"max_tokens": 8', 1))
    with pytest.raises(ConfigError, match=r"legs: its max_tokens is 8, that of .*gsm is 9"):
        page(tmp_path, [])
    head, *others = rows.read_text().splitlines()
    for pair, said in (
        ({"answering": {"large": {"dtype": "int8"}}}, r"settings is .*int8.*, that of .* is \{\}"),
        ({"params": {"specreason": {"threshold": 5}}}, r"specreason's parameters is .*5\}"),
    ):
        changed = json.loads(head) | {"max_tokens": 9, "pair": pair}
        rows.write_text("\n".join([json.dumps(changed), *others]))
        with pytest.raises(ConfigError, match=said):
            page(tmp_path, [])
        with pytest.raises(ConfigError, match=said):
            predicted([tmp_path / "gsm", tmp_path / "legs"], load_costs("r1-1.5b-32b-h100"))


async def test_what_is_not_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation in it"):
        page(tmp_path, [])
    await write(tmp_path / "gsm")
    text = page(tmp_path, ["r1-1.5b-32b"])
    assert "Not measured yet: latency, speculation." in text
    assert cells(text, "specreason")[8] == "not measured"
    assert main([str(tmp_path), str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# A real pair")
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "page.md")]) == 1
    await write(tmp_path / "alone" / "kind", ("small-only",))
    with pytest.raises(ConfigError, match="no rows of large-only"):
        page(tmp_path / "alone", [])


async def test_thresholds_are_those_of_the_calibration(tmp_path: Path) -> None:
    params = {
        "specreason": {"threshold": 5.0, "likelihood": [3.7, 1.0]},
        "route": {"threshold": 8.0},  # not measured
    }
    await write(tmp_path / "gsm", params=params)
    # Measured before its threshold was what it is now; the page has no row of it from there.
    stale = {"specreason": {"threshold": 0.0}}
    await write(tmp_path / "later", ("large-only", "bild:rollback=1.5"), kind="gsm", params=stale)
    text = page(tmp_path, [])
    assert "(`make calibrate-real`): `specreason` threshold 5. What a row" in text
    await write(tmp_path / "other" / "gsm")
    assert "calibrate-real" not in page(tmp_path / "other", [])
