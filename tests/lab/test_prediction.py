"""Predictions from recordings, and the files of costs that ship."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.evaluation.candidates import lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question
from deploy.evaluation.evaluation_log import EvaluationLog
from deploy.evaluation.recording import RecordedRequest, Recording
from deploy.lab.call_costs import ASSUMPTIONS, Costs
from deploy.lab.prediction import HERE, load_costs, predicted, show_prediction
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import Generate, Write
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import Generation, Message, Segment, StopCriteria, Transcript, Usage

WORKER = {"model": "m", "read_ms": 0, "read_token_ms": 1}
COSTS = Costs.model_validate(
    {
        "name": "toy",
        "hardware": "a desk",
        "sources": ["all: made up for a test"],
        "assumptions": ["Desks do not sleep."],
        "small": {**WORKER, "token_ms": 1},
        "large": {**WORKER, "token_ms": 10},
    }
)


def shown(data: dict[str, Any]) -> str:
    """What a terminal shows of a prediction."""
    out = io.StringIO()
    show_prediction(data, Console(file=out, width=400))
    return out.getvalue()


def answer(worker: Any, tokens: int) -> EvaluatedAnswer:
    transcript = Transcript((Message("user", "?"),))
    reading = Generation(Segment(worker, "", finish="length"), Usage(5, 0, 0))
    writing = Generation(Segment(worker, "a"), Usage(5, 4, tokens))
    calls = (
        ActionCompleted(Generate(worker, transcript, StopCriteria(0)), reading, 1.0),
        ActionCompleted(Write(worker, transcript, StopCriteria(99)), writing, 1.0),
    )
    return EvaluatedAnswer(
        "1", recording=Recording(RecordedRequest("r", "p", transcript.messages), calls)
    )


def recorded(folder: Path, **more: Any) -> Path:
    candidates = lineup(["large-only", "small-only"], [None])
    settings = {"speculation": "vanilla", "transport": "in-process", **more}
    evaluation_log = EvaluationLog(folder / "rows.jsonl", settings, candidates, recordings=True)
    problems = [Question("a", "1"), Question("b", "1")]
    evaluation_log.resume(problems)
    for index, problem in enumerate(problems):
        turn = [
            EvaluationResult(True, 100.0, answer("large", 11 + 10 * index)),
            EvaluationResult(index == 0, 50.0, answer("small", 11)),
        ]
        evaluation_log.add(index, problem, turn)
    evaluation_log.close()
    return folder


def test_predicted_rows(tmp_path: Path) -> None:
    data = predicted(recorded(tmp_path), COSTS)
    assert data["predicted"] is True
    large, small = data["rows"]
    assert large["predicted"] is small["predicted"] is True
    # 5 + 1 tokens read, then ten tokens and twenty after the first
    assert (large["policy"], large["n"], large["total_ms"]) == ("large-only", 2, 106 + 206)
    assert (small["total_ms"], small["p50_ms"]) == (32, 16)
    assert (small["speedup"], small["measured_speedup"]) == (312 / 32, 2.0)
    assert (small["accuracy"], small["difference"]) == (0.5, -0.5)
    assert data["assumptions"] == [*ASSUMPTIONS, "Desks do not sleep."]
    page = shown(data)
    assert page.startswith("PREDICTION, not a measurement: toy")
    assert "predicted speedup" in page
    assert "- Desks do not sleep." in page
    assert "a desk" in page
    json.dumps(data)


def test_a_request_that_failed_is_a_wrong_answer_without_a_time(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    head, *rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    failed = next(row for row in rows if (row["policy"], row["problem"]) == ("small-only", 0))
    del failed["recording"]
    failed |= {"error": "the worker is gone", "correct": False}
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])))
    large, small = (data := predicted(folder, COSTS))["rows"]
    assert (large["n"], large["errors"], large["timed"], large["accuracy"]) == (2, 0, 2, 1.0)
    assert (small["n"], small["errors"], small["timed"], small["accuracy"]) == (2, 1, 1, 0.0)
    assert small["difference"] == -1.0
    assert small["total_ms"] == 16  # of the problem that both answered
    assert (small["speedup"], small["measured_speedup"]) == (206 / 16, 2.0)
    assert "failed" in shown(data)
    for row in rows:
        if row["policy"] == "small-only":
            row.pop("recording", None)
            row["error"] = "the worker is gone"
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])))
    small = (data := predicted(folder, BATCHED))["rows"][1]
    assert (small["errors"], small["timed"], small["measured_speedup"]) == (2, 0, None)
    untold = ("p50_ms", "p95_ms", "mean_ms", "total_ms", "speedup", "gpu_hours_per_1000")
    assert [small[key] for key in (*untold, "money_per_1000", "large_tokens")] == [None] * 8
    (line,) = [one for one in shown(data).splitlines() if one.startswith("  small-only ")]
    assert line.split() == ["small-only", "1", "2", "0.0", "[0,", "66]", "-100.0", "[-100,", "+35]"]


def test_requests_that_waited_for_others_have_no_measured_speedup(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    head, *rows = (folder / "rows.jsonl").read_text().splitlines()
    head = json.dumps({**json.loads(head), "concurrency": 48})
    (folder / "rows.jsonl").write_text("\n".join([head, *rows]))
    data = predicted(folder, COSTS)
    assert [row["measured_speedup"] for row in data["rows"]] == [None, None]
    assert "2.00x" not in shown(data)


BATCHED = COSTS.model_copy(
    update={
        "small": COSTS.small.model_copy(update={"token_ms": {1: 1.0, 9: 2.0}}),
        "large": COSTS.large.model_copy(update={"token_ms": {1: 10.0, 9: 18.0}, "gpus": 2.0}),
        "gpu_hour": 3.6,
    }
)


def test_several_requests_at_once(tmp_path: Path) -> None:
    """Each model alone has as many live streams as there are requests."""
    data = predicted(recorded(tmp_path), BATCHED, [1, 5, 9])
    rows = {(row["policy"], row["streams"]): row for row in data["rows"]}
    assert len(rows) == 6
    # Six tokens read, then ten and twenty after the first, at 10, 14 and 18 ms.
    assert [rows["large-only", n]["total_ms"] for n in (1, 5, 9)] == [312, 432, 552]
    assert rows["small-only", 9]["total_ms"] == 2 * (6 + 20)
    assert rows["small-only", 9]["speedup"] == 552 / 52
    large = rows["large-only", 9]
    assert (large["live"], large["gpus"]) == ({"small": 0.0, "large": 9.0}, 2)
    # 276 ms on two GPUs, a ninth of which is one request's: 1,000 are 61.3 GPU-seconds.
    assert large["gpu_hours_per_1000"] == pytest.approx(2 * 276 / 9 / 3600)
    assert large["money_per_1000"] == pytest.approx(2 * 276 / 9 / 1000)
    assert predicted(tmp_path, COSTS)["rows"][0]["money_per_1000"] is None
    page = shown(json.loads(json.dumps(data)))
    assert "ms a token by live streams: 10 at 1, 18 at 9" in page
    with pytest.raises(ConfigError, match="up to 9 live streams, not for 10"):
        predicted(tmp_path, BATCHED, [10])
    with pytest.raises(ConfigError, match="up to 1 live streams, not for 8"):
        predicted(tmp_path, COSTS, [8])


def test_recordings_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        predicted(tmp_path, COSTS)
    folder = recorded(tmp_path / "a", speculation="chain")
    with pytest.raises(ConfigError, match="recorded with 'chain'"):
        predicted(folder, COSTS)
    folder = recorded(tmp_path / "lossy")
    path = next(folder.glob("00000-*"))
    head, *events = path.read_text().splitlines()
    speculation = {"small": "reflective (lossy)", "large": "vanilla"}
    path.write_text(
        "\n".join([json.dumps(json.loads(head) | {"speculation": speculation}), *events])
    )
    with pytest.raises(ConfigError, match=r"recorded with reflective \(lossy\)"):
        predicted(folder, COSTS)
    folder = recorded(tmp_path / "b")
    next(folder.glob("00000-*")).write_text("{}\n")
    with pytest.raises(ConfigError, match="line 1: cannot be read"):
        predicted(folder, COSTS)


def test_answers_from_another_folder_have_their_recordings_there(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "first"), recorded(tmp_path / "second")
    rows = second / "rows.jsonl"
    head, *lines = rows.read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    for row in kept:
        if row["policy"] == "large-only":
            del row["recording"]
        else:
            row["policy"] = "small-only:step_tokens=9"
    rows.write_text("\n".join([head, *map(json.dumps, kept)]))
    table = predicted([first, second], COSTS)["rows"]
    assert [row["policy"] for row in table] == [
        "large-only",
        "small-only",
        "small-only:step_tokens=9",
    ]
    assert table[1]["speedup"] == table[2]["speedup"]
    with pytest.raises(ConfigError, match="second: its rows of large-only have no recordings"):
        predicted(second, COSTS)


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.yaml")))
def test_the_costs_that_ship(name: str) -> None:
    costs = load_costs(name)
    for worker in (costs.small, costs.large):
        times = [worker.token_ms[streams] for streams in sorted(worker.token_ms)]
        assert times == sorted(times)  # more streams, slower tokens
    assert (costs.large.token_ms_at(1) > costs.small.token_ms_at(1)) == ("a3b" not in name)
    assert any("token_ms" in source for source in costs.sources)
    assert any("read_token_ms" in source for source in costs.sources)


def test_bad_costs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, said in (("a: [", "not YAML"), ("name: x", "hardware"), ("[]", "mine.yaml: ")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_costs(str(path))
    with pytest.raises(ConfigError, match=r"there are qwen2\.5-1\.5b-32b-a100"):
        load_costs("nope")
