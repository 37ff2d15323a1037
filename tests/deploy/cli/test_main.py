"""The command line: exit statuses, errors in one line, and what runs without a server."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import serve
from deploy.evaluation.problems import EXTERNAL
from deploy.evaluation.recording import dumps
from deploy.launch.ray_node import spared_sigterm
from deploy.service import extras
from orchestrator.errors import ConfigError
from orchestrator.loop.request import Request
from orchestrator.types import Message
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import LARGE, SMALL, first_good, recorded
from tests.workers.scripted import Scripted


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recording by specreason."""
    request = Request("r1", (Message("user", "2+2+2?"),))
    workers = {"small": Scripted(story=SMALL), "large": Scripted(story=LARGE, scores=first_good)}
    recording, *_ = asyncio.run(recorded(SpecReason(), request, workers))
    file = tmp_path_factory.mktemp("recordings") / "saved.jsonl"
    file.write_text(dumps(recording))
    return str(file)


COMMANDS = (
    "", "serve", "ask", "eval", "calibrate", "lab", "lab bench-decode", "lab reenact",
    "lab torture", "learn", "learn gate", "experiment", "experiment list", "experiment show",
    "experiment start", "experiment stop", "experiment remove", "experiment report", "trace",
    "trace show", "trace replay", "policy", "policy list", "policy show", "policy publish",
    "policy activate", "policy rollback", "policy history", "check-config",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help(baton: Any, command: str) -> None:
    ran = baton(*command.split(), "--help")
    assert (ran.status, ran.err) == (0, "")
    assert "Examples" in ran.out


def test_version(baton: Any) -> None:
    assert baton("--version").out.startswith("baton 0.")


DEAD = "http://127.0.0.1:9"
EVAL = "eval --problems builtin:dev"
CALIBRATE = "calibrate --target-accuracy 0.9"
HELD_OUT = "nothing is tuned on held-out problems"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--nope", 2, "No such option"),
        ("ask", 2, "Missing argument"),
        ("ask ' '", 2, "the question is empty"),
        ("ask x --policy best", 2, "no policy 'best'"),
        ("ask x --policy specreason:threshold=99", 2, "specreason: threshold: "),
        ("ask x --policy specreason:threshold", 2, "NAME:KEY=VALUE"),
        (f"ask x --url {DEAD}", 1, DEAD),
        ("ask x --url nonsense", 1, "nonsense"),
        ("ask x --config /nowhere.yaml", 1, "/nowhere.yaml: No such file"),
        ("serve /nowhere.yaml", 1, "/nowhere.yaml: No such file"),
        ("eval", 2, "Missing option"),
        ("eval --problems builtin:exam", 1, "no builtin problems 'exam'"),
        ("eval --problems /nowhere", 1, "/nowhere: No such file"),
        (f"{EVAL} --budget 0", 2, "--budget 0"),
        (f"{EVAL} --policies best", 2, "no policy 'best'"),
        (f"{EVAL} --concurrency 0", 2, "concurrency"),
        (f"{EVAL} --url {DEAD} --speculation chain", 2, "--speculation"),
        (
            f"{EVAL} --speculation chain:gama=4",
            2,
            "no parameter 'gama'; there are draft, gamma",
        ),
        (f"{EVAL} --feedback", 2, "--feedback"),
        (f"{EVAL} --rows /proc/x/y", 1, "/proc/x/y"),
        (f"{EVAL} --rows a --recordings b", 2, "--recordings"),
        ("lab train allign", 2, "no such stage: allign"),
        ("calibrate --policy specreason", 2, "give one target"),
        (f"{CALIBRATE} --policy best", 2, "no policy 'best'"),
        (f"{CALIBRATE} --policy specreason:threshold=5", 2, "threshold is what is searched for"),
        (f"{CALIBRATE} --policy large-only", 2, "LargeOnly names no threshold"),
        (f"{CALIBRATE} --policy specreason --range 1", 2, "--range 1"),
        (f"{CALIBRATE} --policy specreason --problems builtin:heldout", 2, HELD_OUT),
        (f"{CALIBRATE} --problems builtin:strangers", 2, HELD_OUT),
        (f"{CALIBRATE} --problems {EXTERNAL}", 2, HELD_OUT),
        ("lab reenact --clients 1,x", 2, "--clients 1,x: expected numbers"),
        ("lab reenact --costs nope", 1, "nope: No such file"),
        (f"trace show abc --url {DEAD}", 1, DEAD),
        (f"trace show {__file__}", 1, "found another file"),
        ("trace show nope.jsonl", 1, "nope.jsonl: No such file"),
        (f"trace replay {__file__}", 1, "found another file"),
        ("trace replay SAVED --policy specreason:treshold=8", 2, "treshold: unknown"),
        ("trace replay SAVED --policy nope", 2, "no policy 'nope'"),
        (f"policy list --url {DEAD}", 1, DEAD),
        (f"policy publish specreason:threshold --url {DEAD}", 2, "threshold"),
        ("policy show", 2, "policy show --help"),
    ],
)
def test_errors_are_one_line(baton: Any, saved: str, line: str, status: int, said: str) -> None:
    ran = baton(*shlex.split(line.replace("SAVED", saved)))
    assert ran.status == status
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("baton: ")
    assert ran.out == ""


@pytest.mark.parametrize("command", [("ask", "x"), ("eval", "--problems", "builtin:dev")])
def test_the_service_of_the_environment_is_asked(
    baton: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("BATON_URL", DEAD)
    ran = baton(*command)
    assert (ran.status, DEAD in ran.err) == (1, True)
    refused = baton(*command, "--config", "my.yaml")  # else it would measure another pair
    assert (refused.status, "leave one out" in refused.err) == (2, True)


def test_ask_in_process(baton: Any, tiny_file: Path) -> None:
    ran = baton("ask", "12 + 34", "--config", str(tiny_file), "--max-tokens", "60")
    assert (ran.status, ran.err) == (0, "")
    assert "small ✗" in ran.out
    assert "large ✓" in ran.out
    assert "large tokens" in ran.out


def test_ask_says_what_the_cap_took_back(baton: Any) -> None:
    ran = baton("ask", "What is 37*6+12?", "--max-tokens", "5")
    assert ran.status == 0, ran.err
    assert "small –  9.0 37*6=" in ran.out
    assert "given up: the cap left no room for an answer after it" in ran.out
    assert "✗" not in ran.out


def test_ask_as_json(baton: Any, tiny_file: Path) -> None:
    config = ("--config", str(tiny_file), "--max-tokens", "60")
    ran = baton("ask", "12 + 34", "--policy", "large-only", "--json", *config)
    told = json.loads(ran.out)
    assert {step["author"] for step in told["steps"]} == {"large"}
    assert told["metrics"]["small_tokens"] == 0


@pytest.mark.parametrize("line", [EVAL, CALIBRATE, "learn gate runs --out pair.json"])
def test_what_the_extra_installs_is_asked_for_before_the_work(
    baton: Any, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    ran = baton(*line.split())
    assert (ran.status, ran.out) == (1, "")
    assert "which is not installed here: run pip install -e '.[eval]'" in ran.err


@pytest.mark.parametrize("line", ["ask x", EVAL])
def test_what_runs_models_is_asked_for_before_the_work(
    baton: Any, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    def found(name: str) -> Any:
        return None if name == "torch" else find_spec(name)

    monkeypatch.setattr(extras, "find_spec", found)
    monkeypatch.setitem(sys.modules, "workers.speculation", None)  # which imports torch
    ran = baton(*line.split())
    assert (ran.status, ran.out) == (1, "")
    assert "workers.small needs torch, which is not installed here" in ran.err
    assert "or name a running service: --url" in ran.err


def test_trace_show_reads_a_recording(baton: Any, saved: str, tmp_path: Path) -> None:
    ran = baton("trace", "show", saved)
    assert ran.status == 0
    assert "small ✓  9.0 2+2 is 5." in ran.out
    assert "specreason, finished, stop" in ran.out
    again = tmp_path / "saved.json"
    again.write_text(baton("trace", "show", saved, "--json").out)
    assert baton("trace", "show", str(again)).out == ran.out


def test_ctrl_c_is_said_in_a_line(baton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.cli.trace.call", lambda *given: signal.raise_signal(signal.SIGINT))
    ran = baton("trace", "show", "abc")
    assert (ran.status, ran.out, ran.err) == (130, "", "baton: interrupted\n")


def test_the_file_of_two_models_is_written_into_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "baton.yaml"
    serve._write_new(file, "# why\nkey: 1\n")
    assert file.read_text() == "# why\nkey: 1\n"
    assert capsys.readouterr().out == f"Wrote {file}:\n\n# why\n\n"
    with pytest.raises(ConfigError, match="exists and is another file"):
        serve._write_new(file, "key: 2\n")
    with pytest.raises(ConfigError, match="File exists"):
        serve._write_new(file / "below", "key: 1\n")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_while_ray_starts_and_a_second_one_interrupts_nothing(
    sign: signal.Signals,
) -> None:
    passed = list[str]()

    def start(then: str) -> None:
        with serve._stopping() as stop:
            if then == "in Serve":
                stop.interrupt()
            try:
                signal.raise_signal(sign)
                passed.append("in Ray")
                getattr(stop, then)()
            finally:
                signal.raise_signal(sign)
                passed.append("cleared")

    for then in ("check", "interrupt", "in Serve"):
        with pytest.raises(KeyboardInterrupt) if sign == signal.SIGINT else nullcontext():
            start(then)
    assert passed == ["in Ray", "cleared"] * 2 + ["cleared"]


def test_a_sigterm_that_ray_must_not_get_ends_the_start() -> None:
    with serve._stopping() as stop, spared_sigterm():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.check()


def test_trace_replay_says_whether_a_policy_decides_as_it_did(baton: Any, saved: str) -> None:
    same = baton("trace", "replay", saved)
    assert (same.status, same.err) == (0, "")
    assert "small ✗  2.0 and 2 more is 7." in same.out
    assert "specreason decides as recorded" in same.out
    other = baton("trace", "replay", saved, "--policy", "specreason:threshold=1")
    assert other.status == 1
    assert other.err.startswith("baton: step 2: recorded small's")
    assert "small ✓  2.0 and 2 more is 7." in other.out
    assert "no answer to the next call" in other.out


def test_trace_replay_as_json(baton: Any, saved: str) -> None:
    same = json.loads(baton("trace", "replay", saved, "--json").out)
    assert (same["same"], same["ended"]) == (True, True)
    thought = [step["accepted"] for step in same["steps"] if step["phase"] == "thought"]
    assert thought == [True, False, True, False, True]
    ran = baton("trace", "replay", saved, "--policy", "large-only", "--json")
    other = json.loads(ran.out)
    assert (ran.status, other["same"], other["policy"]) == (1, False, "large-only")
    assert f"baton: {other['difference']}\n" == ran.err


WITHOUT_RAY = """
import subprocess
import sys
import threading
sys.modules["ray"] = None
from deploy.cli.main import main
main()
"""


def test_ask_in_process_imports_no_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, "ask", "What is 37*6+12?"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "boxed{234}" in done.stdout) == (0, True), done.stderr
