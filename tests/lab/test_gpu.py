"""`make gpu`: its plan, the file that an interrupted run continues, and its page."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.gpu import plan
from deploy.lab.gpu.models import VOCABULARY, builtin_worker
from deploy.lab.gpu.plan import MINUTES, STAGES, Stage, opened, rows_of, run_stages
from deploy.lab.gpu.played_worker import PlayedWorker, Texts
from deploy.lab.gpu.report import costs, page
from deploy.lab.reenact.dialogues import Answers, shipped
from deploy.lab.reenact.rows import of_policy, play_over
from orchestrator.types import Segment

PUT = "import sys; from pathlib import Path; from deploy.lab.gpu.plan import opened; "
ENDS = "opened(Path(sys.argv[2])).add({'stage': sys.argv[1], 'row': 'ended'})"


def test_the_stages_fit_the_time() -> None:
    assert sum(stage.limit_s for stage in STAGES) <= 60 * MINUTES
    assert [stage.name for stage in STAGES][:2] == ["draft-model", "sharing"]


def test_a_stage_runs_once_and_a_failure_ends_no_other(tmp_path: Path) -> None:
    path, said = tmp_path / "rows.jsonl", list[str]()
    stages = [Stage("fails", 0, 60), Stage("works", 0, 60)]
    code = PUT + "sys.exit(3) if sys.argv[1] == 'fails' else " + ENDS
    for _ in range(2):
        run_stages(path, "cuda", stages, said.append, [sys.executable, "-c", code])
    assert [(row["stage"], row["row"]) for row in rows_of(path)] == [
        ("fails", "failed"), ("works", "ended"), ("fails", "failed"),
    ]  # fmt: skip
    assert said[-1] == f"works: is in {path}"


def test_a_stage_is_ended_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    run_stages(path, "cuda", [Stage("waits", 0, 0)], lambda _: None, waits)
    assert rows_of(path)[0]["status"] == "at its limit of 0 s"


def test_stages_that_do_not_end_are_named(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_one(path: Path, device: str, stages: list[Stage]) -> None:
        with closing(opened(path)) as file:
            file.add({"stage": stages[0].name, "row": "ended"})
            file.add({"stage": stages[1].name, "row": "failed", "status": "status 1: no memory"})

    monkeypatch.setattr(plan, "run_stages", run_one)
    ran = baton("lab", "gpu", "--device", "cpu", "--out", str(tmp_path), "--only", "n-gram,correct")
    assert (ran.status, "did not end: correct; their logs" in ran.err) == (1, True)
    assert "- correct: failed, status 1: no memory" in (tmp_path / "page.md").read_text()


def test_an_unknown_stage_is_refused(baton: Any) -> None:
    ran = baton("lab", "gpu", "--device", "cpu", "--only", "ngram")
    assert (ran.status, "expected some of draft-model, sharing" in ran.err) == (2, True)


def test_texts_are_what_was_written_here() -> None:
    texts = Texts()
    texts.learn((), Segment("small", "ab", (1, 2)), (11, 12, 13))  # the third was in doubt
    assert texts.real((1, 2)) == (11, 12)
    assert texts.real((1, 2, 3, 4)) == (11, 12, 13, 4)
    assert texts.real((1, 9)) == (11, 9)
    texts.learn((1, 9), Segment("small", "c", (5,)), (15,))
    assert texts.real((1, 9, 5, 6)) == (11, 9, 15, 6)


@pytest.mark.parametrize("policy", ["specreason", "bild"])
async def test_dialogues_play_over_a_real_engine(policy: str, tmp_path: Path) -> None:
    """As many tokens as on record, and what was written here is found in the cache."""
    worker = builtin_worker("tiny", tmp_path, "cpu", 4)
    try:
        assert len(worker.tokenizer.pieces) == VOCABULARY
        answers: dict[str, Answers] = {}
        texts: dict[str, Texts] = {}
        pair: Any = {
            name: PlayedWorker(name, worker, answers, texts, policy) for name in ("small", "large")
        }
        [dialogue] = of_policy(shipped(), policy, 1)[:1]
        played = await play_over(pair, answers, [dialogue], 1)
        made = worker.stats()
    finally:
        worker.close()
    assert len(played.seconds) == 1
    spent = [one.answer.usage for one in dialogue.recording.calls]  # type: ignore[union-attr]
    assert made["generated_tokens"] == sum(one.generated for one in spent)
    assert made["prompt_tokens"] == sum(one.prompt for one in spent)
    assert made["cached_tokens"] > 0.8 * made["prompt_tokens"]


def test_the_page_and_the_costs_say_what_was_measured() -> None:
    rows = [
        {"stage": "draft-model", "row": "large-only", "clients": 8, "seconds": 2.0,
         "requests_per_s": 2.0},
        {"stage": "sharing", "row": "large-only", "clients": 8, "seconds": 4.0,
         "requests_per_s": 1.0},
        {"stage": "sharing", "row": "bild", "clients": 8, "seconds": 1.3, "requests_per_s": 3.0},
        {"stage": "correct", "row": "tiny", "dtype": "float32", "of": 24, "as_on_cpu": 24,
         "as_transformers": 24},
        {"stage": "n-gram", "row": "failed", "status": 3},
        {"stage": "correct", "row": "failed", "status": 1},
        {"stage": "correct", "row": "ended"},
        *(
            {"stage": "sharing", "row": f"vllm {shape}", "token_ms": {"1": 2.0, "32": 6.0},
             "read_ms": {"1": 10.0, "16": 10.5, "64": 11.0, "256": 30.0, "1024": 60.0},
             "verify_ms": 12.5, "call_ms": 8.0}
            for shape in ("1.5b", "32b")
        ),
    ]  # fmt: skip
    text = page(rows, "one GPU")
    assert "| bild | 8 | 1.30 | 3.00 | 3.00x | 1.50x |" in text
    assert "| large-only, draft-model | 8 | 2.00 | 2.00 | 2.00x | 1.00x |" in text
    assert "| tiny | float32 | 24 | 24 | 24 |" in text
    assert "- n-gram: failed, 3" in text
    assert "correct: failed" not in text
    pair = costs(rows, "one GPU")
    assert pair is not None
    small = pair.small
    assert (small.call_ms, small.graph_tokens, small.verify_ms) == (8.0, 64, 2.0)
    assert small.no_graph_ms == pytest.approx(10.0)
    assert small.pass_ms(1, 1024) == pytest.approx(2.0 + 10.0 + 1024 * 30 / 768, rel=0.01)
    assert costs(rows[:-1], "one GPU") is None
