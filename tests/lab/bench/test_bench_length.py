"""`baton lab bench-length` on short thoughts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.cli import main as cli
from deploy.lab.bench import length
from workers.embedded.checkpoints import resolve
from workers.text.tokenizer_files import load_tokenizer


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "lab", "bench-length", *args])
    with pytest.raises(SystemExit) as info:
        cli.main()
    return int(info.value.code or 0)


def test_the_cost_of_a_step_by_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "length.json"
    sizes = ["--steps", "60,30", "--deltas", "40", "--repeats", "1"]
    assert run(monkeypatch, *sizes, "--json", str(out)) == 0
    rows = json.loads(out.read_text())["rows"]
    steps = [row for row in rows if row["measure"] == "step"]
    policies = ("small-only", "specreason", "bild", "speculative-thinking")
    assert [(row["way"], row["policy"]) for row in steps] == [
        (way, policy) for way in ("loop", "replica", "http") for policy in policies
    ]
    for row in steps:
        assert list(row["ms"]) == ["30", "60"]
        assert min(row["ms"].values()) > 0
        assert row["growth"] == pytest.approx(row["ms"]["60"] / row["ms"]["30"])
    assert [row["deltas"] for row in rows if row["measure"] == "deltas"] == [40]
    calls = [row for row in rows if row["measure"] == "call"]
    assert [(row["kind"], row["segments"]) for row in calls] == [
        (kind, size) for size in (30, 60) for kind in ("whole", "next")
    ]
    assert calls[2]["kb"] > 1.5 * calls[0]["kb"]
    assert calls[3]["kb"] == pytest.approx(calls[1]["kb"], rel=0.05)  # as long as the step
    assert "speculative-thinking" in capsys.readouterr().out


@pytest.fixture
def calls_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of seconds of CPU time: millions of functions called, which is the same each run."""
    called = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    monkeypatch.setattr(length, "thread_time", lambda: called / 1e6)
    sys.setprofile(count)
    yield
    sys.setprofile(None)


@pytest.mark.usefixtures("calls_counted")
@pytest.mark.parametrize("way", length.WAYS)
@pytest.mark.parametrize("policy", [*length.CHOICE, "cascade", "surprise-takeover"])
def test_a_step_takes_as_many_calls_however_long_the_thought(policy: str, way: str) -> None:
    (row,) = length.bench_steps([policy], [30, 300], repeats=1, ways=[way])
    assert row["growth"] < 1.25, row


@pytest.mark.usefixtures("calls_counted")
def test_a_remote_delta_takes_as_many_calls_however_long_the_answer() -> None:
    tokenizer = load_tokenizer(str(resolve("embedded:large")))
    length.bench_deltas(tokenizer, [10])  # what runs once only, runs here
    short, long = length.bench_deltas(tokenizer, [200, 2000])
    assert long["us"] < 1.25 * short["us"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--steps", "5"], "--steps: expected whole numbers of at least 21"),
        (["--steps", "x"], "--steps: expected whole numbers"),
        (["--deltas", "0"], "--deltas: expected whole numbers of at least 1"),
        (["--policies", "bild,bald"], "--policies: there is no policy bald"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    args: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *args) == 2
    assert said in capsys.readouterr().err
