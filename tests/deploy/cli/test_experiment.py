"""`baton experiment` against a running service."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.clients import HttpClient
from orchestrator.errors import WorkerUnavailable
from tests.orchestrator.serving import post, service, serving, until
from tests.orchestrator.state.test_set_aside import spoiled

DOCUMENT = """
name: thresholds
arms:
  - {name: five, policy: specreason, params: {threshold: 5}}
  - {name: seven, policy: specreason, params: {threshold: 7}}
goal: {metric: ms, within: [{metric: reward, by: 0.01}]}
note: "is [red]seven better?"
"""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    monkeypatch.delenv("BATON_ADMIN_KEY", raising=False)
    with serving(service()) as address:
        yield address


def test_what_is_not_in_effect_is_named_and_removed(baton: Any, url: str) -> None:
    with serving(service(store=spoiled())) as address:
        to = ("--url", address)
        why = "old is not in effect: experiment/old/1 cannot be used: kind: unknown parameter"
        assert why in baton("experiment", "list", *to).out
        assert why in baton("experiment", "show", "old", *to).out
        refused = baton("experiment", "stop", "old", *to)
        assert (refused.status, "may be removed" in refused.err) == (1, True)
        assert baton("experiment", "remove", "old", *to).out == "old is removed\n"
        assert json.loads(baton("experiment", "list", "--json", *to).out)["data"] == []


def test_an_experiment_from_start_to_stop(baton: Any, url: str, tmp_path: Path) -> None:
    file, to = tmp_path / "thresholds.yaml", ("--url", url)
    file.write_text(DOCUMENT)
    ran = baton("experiment", "start", str(file), *to)
    assert (ran.status, ran.out) == (0, "thresholds has started (run 1)\n")
    listed = baton("experiment", "list", *to).out
    assert "five 50%, seven 50%" in listed
    assert "running" in listed
    shown = baton("experiment", "show", "thresholds", *to).out
    assert "is [red]seven better?" in shown
    assert '"threshold": 7.0' in shown
    for _ in range(10):
        assert post(url).status_code == 200

    def counted() -> int:
        told = json.loads(baton("experiment", "report", "thresholds", "--json", *to).out)
        return sum(told["sample_ratio"]["counts"].values())

    until(lambda: counted() == 10)
    told = baton("experiment", "report", "thresholds", *to).out
    assert "Not enough data" in told
    assert "sample ratio as intended" in told
    assert "always valid" in told
    assert "not sure yet" in told
    ran = baton("experiment", "stop", "thresholds", "--note", "enough", *to)
    assert (ran.status, ran.out) == (0, "thresholds is stopped\n")
    assert "stopped" in baton("experiment", "list", *to).out
    again = baton("experiment", "start", str(file), *to)
    assert again.out == "thresholds has started (run 2)\n"


def test_an_evaluation_tells_the_experiment_what_its_answers_were_worth(
    baton: Any,
    url: str,
    tmp_path: Path,
) -> None:
    file, problems = tmp_path / "thresholds.yaml", tmp_path / "problems.jsonl"
    file.write_text(DOCUMENT)
    assert baton("experiment", "start", str(file), "--url", url).status == 0
    problems.write_text(
        '{"question": "2+2?", "answer": "8"}\n{"question": "?", "answer": "9"}\n' * 4
    )
    ran = baton(
        *("eval", "--problems", str(problems), "--policies", "baton", "--feedback"), "--url", url
    )
    assert ran.status == 0, ran.err

    def rewards() -> list[float]:
        told = baton("experiment", "report", "thresholds", "--json", "--url", url).out
        arms = [one["reward"] for one in json.loads(told)["arms"].values() if "reward" in one]
        units = sum(arm["units"] for arm in arms)
        return [units, sum(arm["units"] * arm["mean"] for arm in arms)]

    until(lambda: rewards() == [8, 4.0])


def test_a_second_run_rates_what_could_not_be_rated(
    baton: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, rated = tmp_path / "problems.jsonl", list[float]()
    problems.write_text('{"question": "2+2?", "answer": "8"}\n')
    asked = ("eval", "--problems", str(problems), "--policies", "large-only", "--feedback")
    asked += ("--url", url, "--rows", str(tmp_path / "rows.jsonl"))

    async def away(*given: Any) -> None:
        raise WorkerUnavailable("the store is away")

    async def rate(client: HttpClient, trace_id: str, reward: float) -> None:
        rated.append(reward)

    monkeypatch.setattr(HttpClient, "send_feedback", away)
    assert baton(*asked).err.endswith("baton: the store is away\n")
    monkeypatch.setattr(HttpClient, "send_feedback", rate)
    for _ in range(2):
        assert baton(*asked).status == 0
        assert rated == [1.0]


def test_what_goes_wrong_is_told_in_a_line(
    baton: Any,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = ("--url", url)
    for text, told in (
        ("name: [", "thresholds.yaml"),
        ("- 1", "a mapping"),
        ("name: x", "arms: is missing"),
    ):
        file = tmp_path / "thresholds.yaml"
        file.write_text(text)
        ran = baton("experiment", "start", str(file), *to)
        assert ran.status != 0
        assert told in ran.err
        assert ran.err.count("\n") == 1
    assert baton("experiment", "start", str(tmp_path / "none.yaml"), *to).status == 1
    assert "no experiment" in baton("experiment", "report", "nobody", *to).err
    monkeypatch.setattr("sys.stdin", io.StringIO(DOCUMENT))
    assert baton("experiment", "start", "-", *to).status == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(DOCUMENT))
    assert "runs already" in baton("experiment", "start", "-", *to).err
