"""The command line: exit statuses, errors in one line, and what runs without a server."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli import serve
from deploy.cli.eval import _served_by
from deploy.cli.pair import Pair
from deploy.evaluation.problems import EXTERNAL
from deploy.evaluation.recording import dumps
from deploy.launch.deployment_file import load
from deploy.service import extras
from deploy.service.notes import pair_of, uncalibrated
from orchestrator.errors import ConfigError
from orchestrator.loop.request import Request
from orchestrator.types import Message
from policies import POLICIES
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


@pytest.mark.parametrize("line", [EVAL, CALIBRATE, "learn gate runs --out pair.json"])
def test_what_the_extra_installs_is_asked_for_before_the_work(
    baton: Any, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    ran = baton(*line.split())
    assert (ran.status, ran.out) == (1, "")
    assert "which is not installed here: pip install 'baton[eval]'" in ran.err


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


def test_calibrate(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """The tiny models know nothing, so the judge turns all drafts down at 9 and none at 0."""
    config = ("--config", str(tiny_file), "--max-tokens", "40", "--limit", "2")
    asked = ("calibrate", "--policy", "specreason:answer_by=small", *config)
    ran = baton(*asked, "--target-large-share", "0.1", "--json")
    assert ran.status == 0
    document = json.loads(ran.out)
    told = document["policies"]["specreason"]
    assert (told["parameter"], told["met"], document["n"]) == ("threshold", True, 2)
    assert told["large_share"] <= 0.1
    assert told["params"]["threshold"] == told["value"]
    assert told["params"]["answer_by"] == "small"
    assert document["replayed_calls"] > document["live_calls"] > 0
    values = [point["value"] for point in told["tried"]]
    assert {0.0, 10.0} <= set(values)
    ran = baton(*asked, "--target-accuracy", "1")
    assert ran.status == 1
    assert "no threshold from 0 to 10 meets accuracy 1" in ran.err


def test_calibrate_measures_the_judge_that_the_policy_asks(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    """Parameters of the deployment file count as those of --policy do."""
    data = yaml.safe_load(tiny_file.read_text())
    params = {"cascade": {"judge": "short"}, "specreason": {"judge": "full"}}
    data["applications"][0]["args"]["policy"] = {"params": params}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(data))
    asked = ("calibrate", "--target-large-share", "1", "--limit", "1", "--max-tokens", "10")
    asked += ("--config", str(tmp_path / "two.yaml"))
    both = ("--policy", "specreason", "--policy", "cascade")
    ran = baton(*asked, *both, "--json")
    assert ran.status == 0, ran.err
    scorings = [judge["scoring"] for judge in json.loads(ran.out)["judge"]]
    assert len(scorings) == 2 * len(set(scorings)) > 0  # of either question

    data["applications"][0]["args"]["policy"] = {"params": {"cascade": {"accept_at": 4}}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(data))
    asked += ("--parameter", "reject_below", "--range", "0,9")
    refused = baton(*asked, "--policy", "cascade")
    assert "--range: reject_below cannot be 9: " in refused.err
    assert baton(*asked, "--policy", "cascade:accept_at=10").status == 0


def test_calibrate_a_pair_on_questions_alone(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """Every policy and a file; a second run asks no model, and the file is served."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "What is 3+4?"}\n{"question": "Say hello."}\n')
    out = tmp_path / "pair.json"
    asked = ("calibrate", "--problems", str(questions), "--config", str(tiny_file))
    asked += ("--max-tokens", "10", "--target-large-share", "0.5", "--out", str(out))
    ran = baton(*asked)
    assert ran.status == 0
    assert "judge by expected: " in ran.out
    assert "2 questions" in ran.out
    document = json.loads(out.read_text())
    assert document["live_calls"] > 0
    named = [name for name, policy in POLICIES.items() if policy.calibrated is not None]
    assert sorted([*document["policies"], *document["unmet"]]) == sorted(named)
    assert document["large_only"]["agreement"] == 1.0
    assert document["large_only"]["accuracy"] is None
    assert all(row["large_share"] <= 0.5 for row in document["policies"].values())
    again = json.loads(baton(*asked, "--json").out)
    assert again["live_calls"] == 0
    assert again["policies"] == document["policies"]
    data = yaml.safe_load(tiny_file.read_text())
    data["applications"][0]["args"]["policy"] = {"calibration": str(out)}
    served = tmp_path / "served.yaml"
    served.write_text(yaml.safe_dump(data))
    args = load(served).args
    for name, row in document["policies"].items():
        policy = args.policy.policy(name)
        assert getattr(policy, row["parameter"]) == row["value"]
    assert uncalibrated(args) == []
    refused = baton(*asked[:-2], "--target-accuracy", "0.5")
    assert (refused.status, "give one target" in refused.err) == (2, True)
    other = [*asked[:5], "--target-accuracy", "0.5"]
    assert "--target-accuracy needs an answer" in baton(*other).err


def test_calibrate_into_a_file_that_holds_more(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """A gate that was learned, and thresholds of other targets: each entry is its own run's."""
    out = tmp_path / "pair.json"
    gate = {"reading": {"bias": -1.0, "weights": {"read_worst": 1.0}}}
    learned = {"params": {"gate": gate}, "learned": {"drafts": 7}}
    pair = pair_of(load(tiny_file).args.workers)
    begun = {"baton_calibration": 1, "pair": pair, "policies": {"learned-gate": learned}}
    out.write_text(json.dumps(begun))
    asked = ("calibrate", "--config", str(tiny_file), "--max-tokens", "40", "--out", str(out))
    specreason = ("--policy", "specreason:answer_by=small")
    first = baton(*asked, *specreason, "--target-large-share", "0.1", "--limit", "2")
    assert first.status == 0, first.err
    assert "kept in the file as they were: learned-gate" in first.out
    assert "measured on the questions that chose the thresholds" in first.out
    document = json.loads(out.read_text())
    assert document["policies"]["learned-gate"] == learned
    row = document["policies"]["specreason"]
    assert (row["target"], row["n"]) == ({"measure": "large_share", "value": 0.1}, 2)
    assert row["in_sample"] is True

    # Another policy at another target leaves that entry as it is, and meets nothing itself.
    gated = ("--policy", "learned-gate")
    second = baton(*asked, *gated, "--target-accuracy", "1", "--limit", "3")
    assert second.status == 1
    assert "learned-gate: no risk from 0 to 1 meets accuracy 1" in second.err
    document = json.loads(out.read_text())
    assert document["policies"]["specreason"] == row
    assert document["policies"]["learned-gate"] == learned
    assert document["unmet"]["learned-gate"]["params"]["gate"]["reading"]["bias"] == -1.0

    third = baton(*asked, *gated, "--target-agreement", "0", "--limit", "3")
    assert third.status == 0, third.err
    document = json.loads(out.read_text())
    assert "learned-gate" not in document["unmet"]
    met = document["policies"]["learned-gate"]
    assert (met["n"], met["learned"]) == (3, learned["learned"])

    # A threshold that met an easier target is not served for one that nothing meets.
    fourth = baton(*asked, *specreason, "--target-accuracy", "1", "--limit", "2")
    assert fourth.status == 1
    document = json.loads(out.read_text())
    assert "specreason" not in document["policies"]
    assert document["unmet"]["specreason"]["met"] is False
    both = baton(*asked, *specreason, *gated, "--target-accuracy", "1", "--limit", "2", "--json")
    assert both.status == 1


def test_a_second_threshold_of_a_policy_is_searched_beside_the_first(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pair.json"
    asked = ("calibrate", "--config", str(tiny_file), "--max-tokens", "10", "--limit", "1")
    asked += ("--target-large-share", "1", "--out", str(out), "--policy", "bild")

    def found() -> Any:
        return json.loads(out.read_text())["policies"]["bild"]["params"]

    first = baton(*asked)
    assert first.status == 0, first.err
    fallback = found()["fallback"]
    second = baton(*asked, "--parameter", "rollback", "--range", "0.5,10")
    assert second.status == 0, second.err
    assert found().keys() == {"fallback", "rollback"}
    assert found()["fallback"] == fallback
    rollback = found()["rollback"]
    assert baton(*asked).status == 0
    assert found()["rollback"] == rollback


def test_trace_show_reads_a_recording(baton: Any, saved: str, tmp_path: Path) -> None:
    ran = baton("trace", "show", saved)
    assert ran.status == 0
    assert "small ✓  9.0 2+2 is 5." in ran.out
    assert "specreason, finished, stop" in ran.out
    again = tmp_path / "saved.json"
    again.write_text(baton("trace", "show", saved, "--json").out)
    assert baton("trace", "show", str(again)).out == ran.out


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
def test_a_second_ctrl_c_while_starting_leaves_the_clearing_away_alone(
    sign: signal.Signals,
) -> None:
    cleared = False

    def start() -> None:
        nonlocal cleared
        with serve._stopping():
            try:
                signal.raise_signal(sign)
            finally:
                signal.raise_signal(sign)
                cleared = True

    with pytest.raises(KeyboardInterrupt):
        start()
    assert cleared


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


WITHOUT_RAY = """
import subprocess
import sys
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
