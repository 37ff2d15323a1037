"""What a worker over vLLM takes, and what it refuses before anything is loaded."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from vllm.usage.usage_lib import UsageContext

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import ConfigError
from orchestrator.types import Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.vllm.loading import TRIED, _alone_on_the_gpu, check_version, load


def test_another_vllm_is_told_of_or_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_version(f"{TRIED}.3")
    assert not caplog.records
    check_version("0.99.0")
    assert "vLLM is 0.99.0, and Baton was tried with 0.32: install" in caplog.text
    monkeypatch.delattr("vllm.v1.core.kv_cache_manager.KVCacheManager.prefix_cache_lookup_enabled")
    with pytest.raises(ConfigError, match=r"0\.99\.0 has no KVCacheManager\.prefix_.*==0\.32\.\*"):
        check_version("0.99.0")


def test_passes_are_of_a_servers_size_and_threads_are_the_engines_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def create(self: Any, context: UsageContext) -> Any:
        seen.extend((context, os.environ.get("OMP_NUM_THREADS")))
        raise ValueError("enough")

    monkeypatch.setattr("vllm.AsyncEngineArgs.create_engine_config", create)
    for before in (None, "5"):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if before is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", before)
        with pytest.raises(ConfigError, match="enough"):
            load("embedded:small", device="cpu", threads=3)
        assert os.environ.get("OMP_NUM_THREADS") == before
    assert seen == [UsageContext.OPENAI_API_SERVER, "3"] * 2


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
    drafted = accepted = [0] * speculation["num_speculative_tokens"]
    try:
        for problem in draw("dev", 3, 6):
            call = Call("r", Transcript((Message("user", problem.question),)), "large")
            texts = []
            for one in (large, worker):
                items = [i async for i in one.generate(call, StopCriteria(120), Sampling())]
                texts.append((items[-1].segment.text, items[-1].segment.finish))
            assert texts[0] == texts[1]
            made = items[-1].provenance  # of the worker that drafts
            if made is not None:
                assert made.origins == "?" * len(items[-1].segment.tokens)
                drafted, accepted = (
                    [total + one for total, one in zip(so_far, more, strict=True)]
                    for so_far, more in ((drafted, made.drafted_at), (accepted, made.accepted_at))
                )
        stats = worker.stats()
        assert stats["lossy"] == 0
        assert 0 < stats["accepted_tokens"] <= stats["drafted_tokens"]
        assert stats["emitted_tokens"] > stats["rounds"] > 0
        for name, counts in (("drafted", drafted), ("accepted", accepted)):
            told = [stats[f"{name}_at_{n}"] for n in range(1, len(counts) + 1)]
            # The worker's own count goes on for a pass or two after a text that was cut.
            assert all(one <= all_ <= one + 12 for one, all_ in zip(counts, told, strict=True))
            assert sum(counts) > 0
        at = [n for n in range(1, 17) if f"drafted_at_{n}" in stats]
        assert at == list(range(1, speculation["num_speculative_tokens"] + 1))
        assert sum(stats[f"drafted_at_{n}"] for n in at) == stats["drafted_tokens"]
        assert sum(stats[f"accepted_at_{n}"] for n in at) == stats["accepted_tokens"]
    finally:
        worker.close()
