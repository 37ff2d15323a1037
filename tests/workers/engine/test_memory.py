"""Memory of a worker: what a checkpoint takes is known before it is loaded, and held to a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.errors import ConfigError
from tests.workers.conftest import FAMILIES, make_model, make_tokenizer, save
from workers.engine import loading
from workers.engine.loading import load_config, open_target
from workers.engine.memory import (
    MemoryNeed,
    fitting_len,
    memory_need,
    reserve,
    shortage,
)
from workers.model.config import ModelConfig


def saved(folder: Path, family: str = "llama", **shape: Any) -> Any:
    tokenizer = make_tokenizer()
    model = make_model(family, vocabulary=len(tokenizer), **shape)
    save(folder, tokenizer, model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("slots", "max_len"), [(1, 64), (6, 300)])
def test_the_need_is_what_is_taken(family: str, slots: int, max_len: int, tmp_path: Path) -> None:
    model = saved(tmp_path, family)
    need, half = (
        memory_need(load_config(str(tmp_path)), dtype=dtype, slots=slots, max_len=max_len)
        for dtype in (torch.float32, torch.bfloat16)
    )
    target = open_target(tmp_path, slots=slots, max_len=max_len).target
    assert need.weights == sum(p.numel() * p.itemsize for p in model.parameters())
    assert need.cache == target.cache.data.nbytes
    assert 2 * (half.weights + half.cache) == need.weights + need.cache
    assert half.passes < need.passes


@pytest.mark.parametrize(
    ("width", "inner", "layers", "heads", "tied", "weights", "kib"),
    [
        pytest.param(2048, 6144, 28, 16, True, 3.4, 112, id="1.7B"),
        pytest.param(4096, 12288, 36, 32, False, 16.4, 144, id="8B"),
        pytest.param(5120, 25600, 64, 64, False, 65.5, 256, id="32B"),
    ],
)
def test_qwen3_as_the_operations_guide_counts_it(
    width: int, inner: int, layers: int, heads: int, tied: bool, weights: float, kib: int
) -> None:
    """Gigabytes of the parameters, and KiB of a cached token."""
    config = ModelConfig(
        model_type="qwen3", max_position_embeddings=40_960, rms_norm_eps=1e-6, hidden_act="silu",
        rope_parameters={}, vocab_size=151_936, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
    )  # fmt: skip
    need = memory_need(config, dtype=torch.bfloat16, slots=1, max_len=1024 - 128)
    assert round(need.weights / 1e9, 1) == weights
    assert need.cache // 1024 // 1024 == kib


def test_a_shortage_has_the_numbers() -> None:
    need = MemoryNeed(weights=16_400_000_000, cache=19_000_000_000, passes=600_000_000)
    fits = {"share": 0.5, "total": 80_000_000_000, "free": 79_000_000_000}
    assert shortage(need, **fits) is None
    reason = shortage(need, **fits | {"share": 0.3})
    assert reason is not None
    for number in ("16.4 GB", "19.0 GB", "0.6 GB", "36.0 GB", "0.3", "80.0 GB", "24.0 GB"):
        assert number in reason
    reason = shortage(need, **fits | {"free": 30_000_000_000})
    assert reason is not None
    assert "only 30.0 GB are free" in reason


@pytest.mark.parametrize(("device", "index"), [("cuda", 3), ("cuda:1", 1)])
def test_the_capped_gpu_has_a_number(
    device: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch refuses to cap the memory of a GPU without an index."""
    capped: list[tuple[float, int | None]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (70_000, 80_000))
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, place: capped.append((share, place.index)),
    )
    reserve(MemoryNeed(10_000, 10_000), device=device, share=0.5)
    assert capped == [(0.5, index)]


def test_attention_on_a_gpu_is_not_cudnns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans for each new length. A model on a CPU stands in for one on a GPU."""
    saved(tmp_path)
    enabled: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", enabled.append)
    open_target(tmp_path, slots=1, max_len=64)
    assert not enabled
    network = loading.load_model(str(tmp_path))
    monkeypatch.setattr(loading, "load_model", lambda path, **_: network)
    monkeypatch.setattr(loading, "reserve", lambda need, **_: None)
    open_target(tmp_path, device="cuda", slots=1, max_len=64)
    assert enabled == [False]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_process_keeps_to_its_share() -> None:
    free, total = torch.cuda.mem_get_info()
    reserve(MemoryNeed(0, 0), device="cuda", share=0.1)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(0.2 * total), dtype=torch.uint8, device="cuda")
        with pytest.raises(ConfigError, match=r"share 0\.1"):
            reserve(MemoryNeed(int(0.2 * total), 0), device="cuda", share=0.1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free


def test_without_max_len_a_text_may_be_as_long_as_the_model_takes_or_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, positions=9000)
    assert open_target(tmp_path, slots=2).target.max_len == 9000
    assert not caplog.records
    config = load_config(str(tmp_path))
    of = memory_need(config, dtype=torch.float32, slots=2, max_len=6000).cache
    assert fitting_len(config, dtype=torch.float32, slots=2, size=of) == 6000
    monkeypatch.setattr(loading, "machine_memory", lambda: 16 * of)
    assert open_target(tmp_path, slots=2).target.max_len == 6000 // 128 * 128
    assert "of the 9000 that the model can take" in caplog.text
    monkeypatch.setattr(loading, "machine_memory", lambda: 4)
    assert open_target(tmp_path, slots=2).target.max_len == loading.SHORTEST


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_cache_beside_packed_weights_is_measured_by_its_own_type(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, positions=20_000)
    room = memory_need(load_config(str(tmp_path)), dtype=torch.float32, slots=2, max_len=6000).cache
    monkeypatch.setattr(loading, "machine_memory", lambda: 16 * room)
    cache = open_target(tmp_path, dtype=dtype, slots=2).target.cache.data
    assert 0.9 * room < cache.nbytes <= room
