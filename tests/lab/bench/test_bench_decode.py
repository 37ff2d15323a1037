"""`baton lab bench-decode` on tiny models: rows, tables, what is refused and what is missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.evaluation.candidates import Candidate
from deploy.lab.bench.candidates import TurnResult, entries
from deploy.lab.bench.rounds import Turns, estimate, identical, rows
from workers.embedded import checkpoints
from workers.speculation import METHODS

COMMAND = ("lab", "bench-decode")
CONTRACT = {
    "method", "lossless", "tokens_per_s", "ratio", "mean_acceptance_length", "target_passes",
    "identical", "temperature",
}  # fmt: skip


def test_methods_side_by_side(baton: Any, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    threads = torch.get_num_threads()
    chosen = (
        "hf-generate,hf-assisted,chain:gamma=4,recursive-c:branching=[2,1,1,1],recursive-s,"
        "lookup,auto"
    )
    ran = baton(
        *COMMAND,
        "--model", str(tiny / "large"), "--draft", str(tiny / "small"), "--methods", chosen,
        "--prompts", "2", "--rounds", "1", "--max-new", "8", "--streams", "1,2",
        "--json", str(out),
    )  # fmt: skip
    assert (ran.status, torch.get_num_threads()) == (0, threads), ran.err
    assert re.search(r"1 of \d+, 0:\d\d: vanilla, warming up\n", ran.err)  # there is no terminal
    data = json.loads(out.read_text())
    found = data["rows"]
    assert all(row.keys() >= CONTRACT for row in found)
    cases = {(row["temperature"], row["streams"]) for row in found}
    assert cases == {(0.0, 1), (1.0, 1), (0.0, 2), (1.0, 2)}
    for case in cases:
        here = [row for row in found if (row["temperature"], row["streams"]) == case]
        (base,) = [row for row in here if row["method"] == "vanilla"]
        assert base["ratio"] == base["mean_acceptance_length"] == 1
        names = {row["method"] for row in here}
        wanted = {"vanilla", "chain", "recursive-c", "recursive-s", "lookup", "auto"}
        assert names == wanted | {"hf-generate"} | ({"hf-assisted"} if case[1] == 1 else set())
        for row in here:
            assert row["tokens_per_s_low"] <= row["tokens_per_s"] <= row["tokens_per_s_high"]
            exact = case[0] == 0 and row["dtype"] == "float32"
            assert row["identical"] == (1.0 if exact else None)
    reason = data["unavailable"]["hf-assisted:drafts=3"]
    assert reason == "assisted generation takes one stream: give --streams 1"
    assert "Temperature 1, streams: 1" in ran.out


def test_peers_decode_without_settings_of_the_checkpoint(
    baton: Any, tiny: Path, tmp_path: Path
) -> None:
    """A generation_config.json may penalise repetitions, as Qwen2.5's does."""
    shutil.copytree(tiny, tmp_path / "pair")
    for name in ("large", "small"):
        file = tmp_path / "pair" / name / "generation_config.json"
        file.write_text(json.dumps({"repetition_penalty": 3.0}))
    out = tmp_path / "decode.json"
    ran = baton(
        *COMMAND,
        "--model", str(tmp_path / "pair" / "large"), "--draft", str(tmp_path / "pair" / "small"),
        "--methods", "hf-generate,hf-assisted:drafts=3", "--prompts", "2", "--rounds", "1",
        "--max-new", "24", "--temperature", "0", "--json", str(out),
    )  # fmt: skip
    assert ran.status == 0, ran.err
    found = {row["method"]: row["identical"] for row in json.loads(out.read_text())["rows"]}
    assert found == {"vanilla": 1, "hf-generate": 1, "hf-assisted": 1}


def test_what_is_missing_is_told(
    baton: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path)
    out = tmp_path / "decode.json"
    ran = baton(
        *COMMAND,
        "--model", str(tiny / "large"), "--draft", "embedded:draft", "--methods",
        "chain:gamma=2,chain:gamme=2,lookup:gamma=2", "--prompts", "2", "--rounds", "1",
        "--max-new", "4", "--temperature", "0", "--json", str(out),
    )  # fmt: skip
    assert ran.status == 0, ran.err
    data = json.loads(out.read_text())
    assert [row["label"] for row in data["rows"]] == ["vanilla", "lookup:gamma=2"]
    reasons = data["unavailable"]
    assert "no embedded model 'embedded:draft'" in reasons["chain:gamma=2"]
    assert "gamme" in reasons["chain:gamme=2"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--methods", "fast"), "no method 'fast'; there are hf-generate, hf-assisted, vanilla"),
        (("--temperature", "warm"), "--temperature warm: expected numbers"),
        (("--temperature", "-1"), "--temperature -1: expected numbers"),
        (("--streams", "0"), "--streams 0: expected numbers"),
        (("--streams", "5"), "--prompts 12: want a multiple of each of --streams 5"),
        (("--prompts", "1"), "--prompts"),
        (("--problems", "nowhere.jsonl"), "nowhere.jsonl: No such file"),
        (("--problems", "builtin:strangers", "--prompts", "200"), "has 120 problems: give less"),
        (("--model", "/nowhere"), "there is no folder /nowhere"),
        (("--max-new", "5000"), "--max-new 5000: prompts have up to"),
    ],
)
def test_what_is_asked_wrongly(baton: Any, args: tuple[str, ...], said: str) -> None:
    ran = baton(*COMMAND, *args)
    assert ran.status in (1, 2)
    assert said in ran.err


def test_every_method_is_entered() -> None:
    entered = list(entries(None))
    assert entered[0] == Candidate("vanilla", "vanilla")
    assert {entry.policy for entry in entered} == {*METHODS, "hf-generate", "hf-assisted"}
    assert sum(entry.policy == "hf-assisted" for entry in entered) == 4
    assert [entry.label for entry in entries([Candidate.parse("chain:gamma=3")])] == [
        "vanilla",
        "chain:gamma=3",
    ]


class Scripted:
    """A candidate whose turns are given."""

    dtype, lossless = "float32", True

    def __init__(self, label: str) -> None:
        self.entry = Candidate.parse(label)

    def turns(self, *seconds: float, tokens: int = 10, rounds: int = 10, said: int = 7) -> Turns:
        works = [
            [TurnResult([[said] * tokens], s, tokens, tokens, rounds, 2 * rounds, tokens - rounds)]
            for s in seconds
        ]
        return Turns(self, works)  # type: ignore[arg-type]

    def run(self, *_: Any) -> TurnResult:
        raise AssertionError


def test_figures_of_turns() -> None:
    base = Scripted("vanilla").turns(1.0, 3.0)
    chain = Scripted("chain:gamma=4").turns(0.5, 1.5, rounds=5)
    beam = Scripted("recursive-s:gamma=4").turns(0.25, 0.75, rounds=4, said=8)
    made = rows([base, chain, beam], 0.0, 1, lambda prompt, out: prompt == 1 and out == [7] * 10)
    found = {row["label"]: row for row in made}
    assert set(found) == {"vanilla", "chain:gamma=4", "recursive-s:gamma=4"}
    one = found["recursive-s:gamma=4"]
    assert one["ratio"] == one["ratio_low"] == one["ratio_high"] == pytest.approx(4)
    assert one["mean_acceptance_length"] == pytest.approx(2.5)
    assert one["tokens_per_s"] == pytest.approx(20)
    assert (one["identical"], found["chain:gamma=4"]["identical"]) == (0.0, 1.0)
    assert (one["right"], found["chain:gamma=4"]["right"]) == (0.0, 0.5)
    assert identical(beam, base) == 0


def test_an_interval_pairs_the_groups() -> None:
    """Prompts of any length widen no ratio that is the same on each."""
    seconds = np.array([1.0, 10.0, 100.0])
    found = estimate("x", (np.ones(3), seconds), (np.ones(3), 2 * seconds))
    assert found == pytest.approx({"x": 2, "x_low": 2, "x_high": 2})
    alone = estimate("x", (np.ones(3), seconds))
    assert alone["x_low"] < alone["x"] < alone["x_high"]
