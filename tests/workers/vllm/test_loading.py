"""What a worker over vLLM takes, and what it refuses before anything is loaded."""

from __future__ import annotations

import fcntl
import multiprocessing
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.types import Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.training.problems import draw
from workers.vllm.loading import _alone_on_the_gpu, check_engine_args, load


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ({"max_model_len": 10}, "max_model_len: say it as max_len"),
        ({"speculative_config": {}}, "speculative_config: say it as speculation"),
        ({"scheduler_cls": "x"}, "scheduler_cls: is set by the worker itself"),
        ({"max_num_batched_token": 1}, "no such argument; did you mean max_num_batched_tokens?"),
        ({"nonsense_zzz": 1}, "nonsense_zzz: this vLLM has no such argument"),
    ],
)
def test_engine_args_are_checked_by_name(engine_args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        check_engine_args(engine_args)
    with pytest.raises(ConfigError):
        load("embedded:small", device="cpu", engine_args=engine_args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len": 10**6}, "max_model_len"),
        ({"speculation": {"method": "ngram"}}, "num_speculative_tokens"),
        ({"speculation": {"method": "ngram", "num_speculative_token": 3}}, "num_speculative_token"),
        ({"engine_args": {"block_size": -1}}, "block_size"),
    ],
)
def test_what_vllm_refuses_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load("embedded:small", device="cpu", **options)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load(str(tmp_path), device="cpu")


def test_an_engine_that_runs_does_not_hold_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "baton/test")
    engine = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    with _alone_on_the_gpu("cuda"):
        engine.start()  # it has the lock's file open, as vLLM's forked processes have
    try:
        with open(Path(gettempdir()) / "baton-vllm-baton-test.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        engine.kill()
        engine.join()


@pytest.mark.parametrize(
    "speculation",
    [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
        {"method": "draft_model", "model": "embedded:small", "num_speculative_tokens": 3},
    ],
    ids=lambda one: one["method"],
)
async def test_speculation_changes_no_greedy_text_and_is_counted(
    speculation: dict[str, Any], large: Any
) -> None:
    from workers.embedded.checkpoints import resolve

    if "model" in speculation:
        speculation = {**speculation, "model": str(resolve(speculation["model"]))}
    worker = load(
        "embedded:large",
        device="cpu",
        rows=4,
        max_len=512,
        threads=1,
        speculation=speculation,
    )
    try:
        for problem in draw("dev", 3, 6):
            call = Call("r", Transcript((Message("user", problem.question),)), "large")
            texts = []
            for one in (large, worker):
                items = [i async for i in one.generate(call, StopCriteria(120), Sampling())]
                texts.append((items[-1].segment.text, items[-1].segment.finish))
            assert texts[0] == texts[1]
        stats = worker.stats()
        assert stats["lossy"] == 0
        assert 0 < stats["accepted_tokens"] <= stats["drafted_tokens"]
        assert stats["emitted_tokens"] > stats["rounds"] > 0
        at = [n for n in range(1, 17) if f"drafted_at_{n}" in stats]
        assert at == list(range(1, speculation["num_speculative_tokens"] + 1))
        assert sum(stats[f"drafted_at_{n}"] for n in at) == stats["drafted_tokens"]
        assert sum(stats[f"accepted_at_{n}"] for n in at) == stats["accepted_tokens"]
    finally:
        worker.close()
