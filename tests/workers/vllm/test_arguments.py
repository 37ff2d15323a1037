"""Arguments of vLLM's that a deployment file may say, and why others are refused."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from workers.vllm.arguments import capture_sizes, check_engine_args, check_speculation
from workers.vllm.loading import load


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ({"max_model_len": 10}, "max_model_len: say it as max_len"),
        ({"speculative_config": {}}, "speculative_config: say it as speculation"),
        ({"spec_tokens": 3}, "spec_tokens: say it as speculation"),
        ({"data_parallel_size": 2}, "data_parallel_size: say it as replicas"),
        ({"data_parallel_backend": "ray"}, "data_parallel_backend: copies of a model are replica"),
        ({"scheduler_cls": "x"}, "scheduler_cls: is set by the worker itself"),
        ({"structured_outputs_config": {}}, "structured_outputs_config: is set by the worker its"),
        ({"distributed_executor_backend": "mp"}, "backend: Ray starts vLLM's actors in the repli"),
        ({"nnodes": 2}, "nnodes: Ray finds the GPUs"),
        ({"revision": "main"}, "revision: the worker reads config and tokenizer too, without it"),
        ({"kv_transfer_config": {}}, "kv_transfer_config: a judge says how much of a prompt"),
        ({"kv_sharing_fast_prefill": True}, "it leaves out log-probabilities of prompts"),
        ({"max_num_batched_token": 1}, "no such argument; did you mean max_num_batched_tokens?"),
        ({"nonsense_zzz": 1}, "nonsense_zzz: this vLLM has no such argument"),
    ],
)
def test_engine_args_are_checked_by_name(engine_args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_engine_args(engine_args)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load("embedded:small", device="cpu", engine_args=engine_args)


def test_the_others_are_taken() -> None:
    fine = {"quantization": "fp8", "max_num_batched_tokens": 512, "hf_overrides": {}}
    assert check_engine_args(fine) == fine


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"method": "ngram"}, "num_speculative_tokens: is missing"),
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean num_speculative_tokens?"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "greater than 0, not 0"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "fly"},
            "Input should be 'standard', 'synthetic' or 'block', not 'fly'",
        ),
    ],
)
def test_parameters_of_speculation_are_checked(speculation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_speculation(speculation)


def test_speculation_that_vllm_takes() -> None:
    assert check_speculation(None) == check_speculation({}) == {}
    assert check_speculation({"method": "vanilla"}) == {}
    check_speculation({"method": "mtp"})
    check_speculation(
        {"method": "eagle3", "model": "m", "num_speculative_tokens": 3, "attention_backend": "FA"}
    )


def test_graphs_are_captured_for_what_is_decoded_and_what_is_read() -> None:
    sizes = capture_sizes(32, 0, {})["cudagraph_capture_sizes"]
    assert {1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512} <= set(sizes)
    assert sizes == sorted(set(sizes))
    assert all(b - a <= 128 for a, b in pairwise(sizes))
    drafting = capture_sizes(6, 3, {})["cudagraph_capture_sizes"]
    assert {4, 8, 16, 24} <= set(drafting)  # 1, 2, 4 and 6 streams of 4 tokens each
    assert max(capture_sizes(256, 4, {})["cudagraph_capture_sizes"]) == 512


@pytest.mark.parametrize(
    "engine_args",
    [
        {"cudagraph_capture_sizes": [1, 2]},
        {"max_cudagraph_capture_size": 64},
        {"compilation_config": {"mode": 0}},
        {"enforce_eager": True},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_deployment_file_decides_what_is_captured(engine_args: dict[str, Any]) -> None:
    assert capture_sizes(32, 0, engine_args) == {}


@pytest.mark.parametrize(
    ("device", "engine_args", "sizes"),
    [
        ("cuda", {}, capture_sizes(8, 0, {})["cudagraph_capture_sizes"]),
        ("cuda", {"cudagraph_capture_sizes": [1, 2]}, [1, 2]),
        ("cpu", {}, None),
    ],
)
def test_graphs_are_captured_on_gpus_alone(
    device: str,
    engine_args: dict[str, Any],
    sizes: list[int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def create(self: Any, _: Any) -> Any:
        seen.append(self.cudagraph_capture_sizes)
        raise ValueError("enough")

    monkeypatch.setattr("vllm.AsyncEngineArgs.create_engine_config", create)
    with pytest.raises(ConfigError, match="enough"):
        load("embedded:small", device=device, engine_args=engine_args)
    assert seen == [sizes]
