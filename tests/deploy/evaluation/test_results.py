"""The results page, the claims beside it, the tables and the plot."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question, Turn
from deploy.evaluation.paper_baselines import PaperBaseline, PaperClaim, judge_claim, load_baselines
from deploy.evaluation.plots import draw, front
from deploy.evaluation.results import page
from deploy.evaluation.summary import Row, rows
from deploy.evaluation.tables import MAIN, WORK, by_level, markdown, report
from orchestrator.errors import ConfigError
from orchestrator.loop.events import Metrics
from policies import POLICIES


def result(correct: bool, ms: float, large: int) -> EvaluationResult:
    return EvaluationResult(correct, ms, EvaluatedAnswer("", 5, Metrics(10, large)))


def measured(speculation: str = "vanilla", transport: str = "in-process") -> list[Row]:
    """Large-only: all right in 100 ms; small-only: half in 25; specreason: 3 in 4 in 50 or 40."""
    problems = [Question(str(n), str(n), 1 + n // 4) for n in range(8)]
    candidates = lineup(
        ["large-only", "small-only", "specreason", "specreason:threshold=9"], [None]
    )
    turns: list[Turn] = [
        [
            result(True, 100.0, 40),
            result(n % 2 == 0, 25.0, 0),
            result(n % 4 != 0, 50.0, 10),
            result(True, 80.0, 30),
        ]
        for n in range(8)
    ]
    return rows(problems, candidates, turns, speculation=speculation, transport=transport)


ABOUT: dict[str, Any] = {
    "n": 8,
    "problems": "builtin:dev",
    "seed": 0,
    "concurrency": 1,
    "transport": "in-process",
    "speculation": "vanilla",
}


def claim(**data: Any) -> PaperClaim:
    return PaperClaim.model_validate({"says": "so", **data})


@pytest.mark.parametrize(
    ("data", "value", "verdict"),
    [
        ({"measure": "speedup", "from": 2.0}, 2.0, "holds"),
        ({"measure": "speedup", "from": 2.1}, 2.0, "fails"),
        ({"measure": "speedup", "loss": 0, "from": 1.2}, 2.0, "open"),  # eight do not show it
        ({"measure": "speedup", "loss": 50, "from": 1.2}, 1.25, "holds"),  # another variant
        ({"measure": "speedup", "loss": 90, "from": 1.2}, 2.0, "holds"),
        ({"measure": "speedup", "loss": 90, "from": 2.1}, 2.0, "fails"),
        ({"measure": "latency_cut", "from": 25.9}, 50.0, "holds"),
        ({"measure": "over_large", "from": -2.1, "to": 1.0}, -25.0, "open"),  # eight do not tell
        ({"measure": "over_large", "from": 20.0}, -25.0, "fails"),
        ({"measure": "over_small", "from": 6.2}, 25.0, "open"),
        ({"measure": "over_small", "from": -60}, 25.0, "holds"),
        (
            {"measure": "latency_cut", "speculation": "token-level", "from": 8.8},
            None,
            "not measured",
        ),
    ],
)
def test_verdicts(data: dict[str, Any], value: float | None, verdict: str) -> None:
    found = judge_claim("specreason", claim(**data), measured())
    assert (found.found and found.found.value, found.verdict) == (value, verdict)


@pytest.mark.parametrize(
    ("low", "high", "loss", "verdict"),
    [
        (-0.8, 0.5, 0, "holds"),
        (-1.2, 0.5, 0, "open"),
        (-3.0, -1.1, 0, "fails"),
        (-2.0, -1.1, 2, "holds"),
        (-4.0, -1.1, 2, "open"),
        (-4.0, -2.1, 2, "fails"),
    ],
)
def test_a_loss_is_judged_by_its_interval(
    low: float, high: float, loss: float, verdict: str
) -> None:
    table = measured()
    for row in table:
        row.update(difference_low=low / 100, difference_high=high / 100)
    wanted = claim(measure="speedup", loss=loss, **{"from": 1.2})
    assert judge_claim("specreason", wanted, table).verdict == verdict


def test_the_interval_is_in_the_claims_unit() -> None:
    cut = judge_claim("specreason", claim(measure="latency_cut", **{"from": 1}), measured())
    assert cut.measured == "50.00 % [50.00, 50.00]"
    gain = judge_claim("specreason", claim(measure="over_small", **{"from": 1}), measured())
    assert gain.found is not None
    assert gain.found.low < 1 < gain.found.value < gain.found.high
    assert gain.measured.startswith("+25.00 points [-")


def test_a_claim_is_measured_under_its_own_conditions() -> None:
    other = [*measured("chain"), *measured("the service's", "http")]
    wanted = claim(measure="speedup", speculation="token-level", **{"from": 1})
    found = judge_claim("specreason", wanted, other)
    assert found.row is not None
    assert found.row["speculation"] == "chain"
    plain = claim(measure="speedup", **{"from": 1})
    assert judge_claim("specreason", plain, other).verdict == "not measured"
    assert judge_claim("bild", wanted, other).measured == "not measured"
    lossy = measured("reflective (lossy)")  # no claim is about it
    assert judge_claim("specreason", wanted, lossy).measured == "not measured"


def test_the_claims_that_ship_can_be_read() -> None:
    found = load_baselines()
    assert {"specreason", "speculative-thinking", "bild", "cascade"} <= found.keys()
    assert [one.low for one in found["bild"].claims] == [1.85, 2.12]


def test_bad_claims(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text("x: {paper: p, why: w, claims: [{says: s, measure: luck, from: 1}]}")
    with pytest.raises(ConfigError, match="measure"):
        load_baselines(file)


def test_the_page_names_every_policy_and_every_broken_claim() -> None:
    claims = {
        "specreason": PaperBaseline(
            paper="A paper",
            claims=(
                claim(measure="speedup", **{"from": 1.4}),
                claim(measure="over_large", **{"from": 20}),
            ),
            why="The pair is small.",
        )
    }
    text = page(
        [
            {"rows": measured(), **ABOUT},
            {"rows": measured("chain"), **ABOUT, "speculation": "chain"},
        ],
        [],
        claims,
        [*POLICIES, "to-come"],
        "results.png",
    )
    assert "![Accuracy against latency and against large-model tokens](results.png)" in text
    assert "| so | 2.00x [2.00, 2.00] | `specreason`, vanilla, in-process, n=8, -25.0" in text
    assert "holds |" in text
    assert "-25.00 points" in text
    assert "**does not hold**" in text
    assert "Why not here: The pair is small." in text
    assert "### to-come\n\nNo paper's claim is on record for it. Not measured." in text
    assert "## Also measured: in-process, chain" in text
    assert "Predictions" not in text


def test_why_is_kept_for_claims_that_do_not_hold() -> None:
    claims = {
        "specreason": PaperBaseline(
            paper="A paper", claims=(claim(measure="speedup", **{"from": 1.4}),), why="No reason."
        )
    }
    text = page([{"rows": measured(), **ABOUT}], [], claims, POLICIES, "x.png")
    assert "Why not here" not in text


def test_tables_in_markdown() -> None:
    table = measured()
    lines = markdown(table, MAIN).splitlines()
    assert len(lines) == 2 + len(table)
    assert len({line.count("|") for line in lines}) == 1
    assert "| large-only | 100.0 [68, 100] |  |  | 100/100 | 1.00x | 10+40 | 80% |" in lines
    assert "level 1" in markdown(table, by_level(table))
    assert "75.0 (2.00x)" in markdown(table, by_level(table))
    whole = report(table, ABOUT)
    assert "8 problems of `builtin:dev` (seed 0)" in whole
    assert "ms judge" in markdown(table, WORK)
    assert "## By level" in whole


def test_the_plot_is_a_picture_of_two_panels(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plot.png"
    draw(measured(), path, "title")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1650, 720)
    assert len(data) > 20_000
    with pytest.raises(ConfigError):
        draw(measured(), tmp_path)


def test_the_pareto_front() -> None:
    points = [(3, 5), (1, 1), (2, 4), (2, 3), (4, 5), (5, 9)]
    assert front(points) == [(1, 1), (2, 4), (3, 5), (5, 9)]


def test_every_number_of_the_page_is_measured(tmp_path: Path) -> None:
    """The same page from the same JSON, whatever happened in between."""
    data = {"rows": measured(), **ABOUT}
    again = json.loads(json.dumps(data))
    assert page([data], [], load_baselines(), POLICIES, "x.png") == page(
        [again], [], load_baselines(), POLICIES, "x.png"
    )
