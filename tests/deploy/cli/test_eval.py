"""`baton eval`: what it measures, and which rows a second run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli.eval import _served_by
from deploy.cli.pair import Pair


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ":1: expected"),
        ('{"question": "x"}', ":1: expected"),
        ('{"question": 1, "answer": 2}', ":1:"),
    ],
)
def test_problem_files_are_checked(baton: Any, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(line)
    ran = baton("eval", "--problems", str(file))
    assert ran.status == 1
    assert said in ran.err


def test_eval_in_process(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    ran = baton(
        *("eval", "--problems", "builtin:dev", "--limit", "2", "--config", str(tiny_file)),
        *("--max-tokens", "40", "--policies", "specreason:threshold=5", "--budget", "8,16"),
        *("--json", str(out), "--plot", str(plot)),
    )
    assert ran.status == 0
    rows = json.loads(out.read_text())["rows"]
    found = [(row["policy"], row["budget"], row["n"], row["transport"]) for row in rows]
    assert found == [
        ("large-only", 8, 2, "in-process"),
        ("specreason:threshold=5", 8, 2, "in-process"),
        ("large-only", 16, 2, "in-process"),
        ("specreason:threshold=5", 16, 2, "in-process"),
    ]
    contract = (
        "policy n accuracy p50_ms p95_ms speedup small_tokens large_tokens output_tokens "
        "accepted_steps budget speculation transport"
    )
    assert set(contract.split()) <= rows[0].keys()
    assert rows[0]["speculation"] == "vanilla"
    assert "specreason:threshold=5" in ran.out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_an_evaluation_at_a_temperature(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """Its rows are of that temperature alone, and the seed repeats its draws."""

    def answers(*more: str) -> list[str]:
        rows = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        ran = baton(
            *("eval", "--problems", "builtin:dev", "--limit", "1", "--config", str(tiny_file)),
            *("--max-tokens", "20", "--policies", "small-only", "--rows", str(rows), *more),
        )
        assert ran.status == 0, ran.err
        (head, *lines) = rows.read_text().splitlines()
        assert ("temperature" in head) == bool(more)
        return [json.loads(line)["text"] for line in lines]

    drawn = answers("--temperature", "1.5", "--seed", "1")
    assert drawn == answers("--temperature", "1.5", "--seed", "1")
    assert drawn != answers()


def test_accuracy_without_answers_says_nothing(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    asked = ("eval", "--problems", str(problems), "--config", str(tiny_file), "--max-tokens", "5")
    for answer, told in (("", True), ("2", False)):
        problems.write_text(json.dumps({"question": "1+1?", "answer": answer}))
        ran = baton(*asked, "--policies", "large-only")
        assert (ran.status, "accuracy says nothing" in ran.out) == (0, told)


def test_lossy_speculation_shows_wherever_it_serves(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    data = yaml.safe_load(tiny_file.read_text())
    large = data["applications"][0]["args"]["workers"]["large"]
    small = data["applications"][0]["args"]["workers"]["small"]["model"]
    large["speculation"] = {"method": "reflective", "params": {"draft": small, "gamma": 2}}
    file, out = tmp_path / "lossy.yaml", tmp_path / "rows.json"
    file.write_text(yaml.safe_dump(data))
    short = ("--config", str(file), "--max-tokens", "12")
    told = baton("ask", "1+1?", "--policy", "large-only", *short)
    assert "large worker: reflective (lossy)" in told.out
    ran = baton(
        *("eval", "--problems", "builtin:dev", "--limit", "1", "--policies", "large-only", *short),
        *("--speculation", "reflective", "--json", str(out)),
        *("--recordings", str(tmp_path / "run")),
    )
    assert ran.status == 0
    method = "reflective:gamma=2 (lossy)"
    assert f"The large worker speculates: {method}" in " ".join(ran.out.split())
    assert json.loads(out.read_text())["rows"][0]["speculation"] == method
    (recording,) = (
        path for path in (tmp_path / "run").rglob("*.jsonl") if path.name != "rows.jsonl"
    )
    shown = baton("trace", "show", str(recording))
    assert "large worker: reflective (lossy)" in shown.out


def test_an_evaluation_is_continued(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    config = ("--config", str(tiny_file), "--max-tokens", "40")
    problems, recordings = tmp_path / "problems.jsonl", tmp_path / "run"
    line = {"question": "1+1?", "answer": "\\frac{4}{2}"}
    problems.write_text(f"{json.dumps(line)}\n" * 2)
    asked = ("eval", "--problems", str(problems), "--recordings", str(recordings), *config)
    first = baton(*asked, "--limit", "1")
    assert first.status == 0
    out = tmp_path / "summary.json"
    second = baton(*asked, "--json", str(out))
    assert second.status == 0
    assert len((recordings / "rows.jsonl").read_text().splitlines()) == 1 + 2 * 3
    assert "not recorded" not in second.out
    rows = recordings / "rows.jsonl"
    *others, last = rows.read_text().splitlines()
    unrecorded = {key: one for key, one in json.loads(last).items() if key != "recording"}
    rows.write_text("\n".join((*others, json.dumps(unrecorded))) + "\n")
    assert "1 of 6 answers are not recorded, since they or a worker failed" in baton(*asked).out
    refused = baton(*asked, "--concurrency", "2")
    assert refused.status == 1
    assert "its concurrency is 1, now 2" in refused.err


def test_rows_are_of_one_deployment_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.cli.pair.want_engines", lambda workers: None)
    data = yaml.safe_load(Path("deploy/local.yaml").read_text())
    args = data["applications"][0]["args"]
    args["limits"] = {"max_tokens": 50}
    args["policy"]["default"] = "small-only"
    args["workers"]["small"]["speculation"] = {"method": "lookup", "params": {"gamma": 3}}
    del args["workers"]["large"]["speculation"]  # vLLM has other methods
    args["workers"]["large"]["engine"] = "vllm"
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(data))
    (_, usual), (_, changed) = (_served_by(Pair(config=file), [], None) for file in (None, other))
    assert {key for key in usual if usual[key] != changed[key]} == usual.keys() - {"pair"}
    assert changed["max_tokens"] == 50
    assert _served_by(Pair(config=other), [], 12)[1]["max_tokens"] == 12


def test_rows_are_of_one_method_and_its_parameters(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    out, rows = tmp_path / "summary.json", tmp_path / "rows.jsonl"
    asked = ("eval", "--problems", "builtin:dev", "--limit", "1", "--policies", "large-only")
    asked += ("--config", str(tiny_file), "--max-tokens", "12", "--rows", str(rows))
    ran = baton(*asked, "--speculation", "chain:threshold=0.6:gamma=16", "--json", str(out))
    assert ran.status == 0, ran.err
    (row,) = json.loads(out.read_text())["rows"]
    assert row["speculation"] == "chain:gamma=16:threshold=0.6"
    kept = rows.read_bytes()
    assert baton(*asked, "--speculation", "chain:gamma=16:threshold=0.6").status == 0
    other = baton(*asked, "--speculation", "chain:gamma=4:threshold=0.6")
    assert other.status == 1
    assert 'its speculation is "chain:gamma=16:threshold=0.6", now "chain:gamma=4' in other.err
    assert rows.read_bytes() == kept


def test_a_method_that_the_file_has_parameters_for_is_named_with_them(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    data = yaml.safe_load(tiny_file.read_text())
    small = data["applications"][0]["args"]["workers"]["small"]["model"]
    large = data["applications"][0]["args"]["workers"]["large"]
    large["speculation"] = {"method": "chain", "params": {"draft": small, "gamma": 2}}
    chain = tmp_path / "chain.yaml"
    chain.write_text(yaml.safe_dump(data))
    assert _served_by(Pair(None, chain, "chain"), [], None)[0] == "chain:gamma=2"
    assert _served_by(Pair(None, chain, default_speculation="vanilla"), [], None)[0] == "vanilla"
