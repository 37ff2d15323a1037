"""Problems sent to a running experiment by `baton lab drive`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.cli.test_experiment import DOCUMENT
from tests.orchestrator.serving import service, serving, until


@pytest.fixture
def url() -> Iterator[str]:
    with serving(service()) as address:
        yield address


def test_driving_an_experiment_judges_every_answer(baton: Any, url: str, tmp_path: Path) -> None:
    file, problems, to = tmp_path / "x.yaml", tmp_path / "problems.jsonl", ("--url", url)
    file.write_text(DOCUMENT)
    rows = [{"question": f"{n}: what is twice 4?", "answer": 8 if n % 4 else 9} for n in range(40)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drive = ("lab", "drive", "--problems", str(problems), "--every", "16", *to)
    ran = baton(*drive)
    assert ran.status == 0, ran.err
    assert "no experiment runs" in ran.out
    by_user = tmp_path / "by-user.yaml"
    by_user.write_text(f"{DOCUMENT}unit: user\n")
    assert baton("experiment", "start", str(by_user), *to).status == 0
    assert "these requests name no user" in baton(*drive).out
    assert baton("experiment", "stop", "thresholds", *to).status == 0
    assert baton("experiment", "start", str(file), *to).status == 0
    told = json.loads(baton(*drive, "--json").out)["lots"]
    assert [lot["until"] for lot in told] == [16, 32, 40]
    arms = [arm for lot in told for arm in lot["arms"].values()]
    assert sum(arm["requests"] for arm in arms) == 40
    assert sum(arm["right"] for arm in arms) == 30
    assert {name for lot in told for name in lot["arms"]} == {"thresholds/five", "thresholds/seven"}

    def rewards() -> list[tuple[int, float]]:
        told = json.loads(baton("experiment", "report", "thresholds", "--json", *to).out)
        found = [arm["reward"] for arm in told["arms"].values() if "reward" in arm]
        return [(one["requests"], one["mean"]) for one in found]

    until(lambda: sum(count for count, _ in rewards()) == 40)
    assert sum(count * mean for count, mean in rewards()) == pytest.approx(30)
    ran = baton("lab", "drive", "--problems", str(problems), "--url", "http://127.0.0.1:9")
    assert ran.status == 1
    assert "40 requests failed" in ran.err
