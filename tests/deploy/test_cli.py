"""The command line: exit statuses, errors in one line, and what runs without a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import cli
from orchestrator import record
from orchestrator.events import Ended, Metrics, Stepped
from orchestrator.types import Message, Segment, Step, Trace


class Ran:
    """What a command did."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def baton(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["baton", *args])
        with pytest.raises(SystemExit) as info:
            cli.main()
        told = capsys.readouterr()
        return Ran(int(info.value.code or 0), told.out, told.err)

    return run


@pytest.mark.parametrize(
    "command", [(), ("serve",), ("ask",), ("eval",), ("trace",), ("trace", "show")]
)
def test_help(baton: Any, command: tuple[str, ...]) -> None:
    ran = baton(*command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert command in ((), ("trace",)) or "Examples" in ran.out


DEAD = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--nope",), 2, "No such option"),
        (("ask",), 2, "Missing argument"),
        (("ask", " "), 2, "the question is empty"),
        (("ask", "x", "--policy", "best"), 2, "no policy 'best'"),
        (("ask", "x", "--policy", "specreason:threshold=99"), 2, "specreason: threshold: "),
        (("ask", "x", "--policy", "specreason:threshold"), 2, "NAME:KEY=VALUE"),
        (("ask", "x", "--url", DEAD), 1, DEAD),
        (("ask", "x", "--url", "nonsense"), 1, "nonsense"),
        (("ask", "x", "--config", "/nowhere.yaml"), 1, "/nowhere.yaml: No such file"),
        (("serve", "/nowhere.yaml"), 1, "/nowhere.yaml: No such file"),
        (("eval",), 2, "Missing option"),
        (("eval", "--problems", "builtin:exam"), 1, "no builtin problems 'exam'"),
        (("eval", "--problems", "/nowhere"), 1, "/nowhere: No such file"),
        (("eval", "--problems", "builtin:dev", "--budget", "0"), 2, "--budget 0"),
        (("eval", "--problems", "builtin:dev", "--policies", "best"), 2, "no policy 'best'"),
        (("eval", "--problems", "builtin:dev", "--concurrency", "0"), 2, "concurrency"),
        (
            ("eval", "--problems", "builtin:dev", "--url", DEAD, "--speculation", "chain"),
            2,
            "--speculation",
        ),
        (("eval", "--problems", "builtin:dev", "--url", DEAD, "--small", "x"), 2, "--small"),
        (("eval", "--problems", "builtin:dev", "--small", "/nowhere"), 1, "/nowhere is no model"),
        (("train", "allign"), 2, "no such stage: allign"),
        (("trace", "show", "abc", "--url", DEAD), 1, DEAD),
        (("trace", "show", __file__), 1, "line 1: cannot be read"),
    ],
)
def test_errors_are_one_line(baton: Any, args: tuple[str, ...], status: int, said: str) -> None:
    ran = baton(*args)
    assert ran.status == status
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("baton: ")
    assert ran.out == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", ":1: want"), ('{"question": "x"}', ":1: want"), ('{"question": 1, "answer": 2}', ":1:")],
)
def test_problem_files_are_checked(baton: Any, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(line)
    ran = baton("eval", "--problems", str(file))
    assert ran.status == 1
    assert said in ran.err


def test_ask_in_process(baton: Any, tiny_file: Path) -> None:
    ran = baton("ask", "12 + 34", "--config", str(tiny_file), "--max-tokens", "60")
    assert (ran.status, ran.err) == (0, "")
    assert "small ✗" in ran.out
    assert "large ✓" in ran.out
    assert "large tokens" in ran.out


def test_ask_as_json(baton: Any, tiny_file: Path) -> None:
    config = ("--config", str(tiny_file), "--max-tokens", "60")
    ran = baton("ask", "12 + 34", "--policy", "large-only", "--json", *config)
    told = json.loads(ran.out)
    assert {step["author"] for step in told["steps"]} == {"large"}
    assert told["metrics"]["small_tokens"] == 0


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


def test_trace_show_reads_a_recording(baton: Any, tmp_path: Path) -> None:
    step = Step("small", "12+34=46", True, 5, 3.0, 8.4)
    trace = Trace((Message("user", "12 + 34?"),), (), (Segment("large", "46"),), True, done=True)
    asked = record.Asked("r1", "specreason", trace.messages)
    recording = record.Recording(asked, (Stepped(step), Ended(trace, (step,), Metrics())))
    file = tmp_path / "saved.jsonl"
    file.write_text(record.dumps(recording))
    ran = baton("trace", "show", str(file))
    assert ran.status == 0
    assert "small ✓  8.4 12+34=46" in ran.out
    assert "46" in ran.out.splitlines()
    again = tmp_path / "saved.json"
    again.write_text(baton("trace", "show", str(file), "--json").out)
    assert baton("trace", "show", str(again)).out == ran.out
