"""Checks arguments for vLLM's engine before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from vllm import AsyncEngineArgs
from vllm.config.speculative import SpeculativeConfig

from orchestrator.errors import ConfigError

SAID_ELSEWHERE = {
    "model": "model",
    "tokenizer": "model",
    "dtype": "dtype",
    "max_model_len": "max_len",
    "max_num_seqs": "rows",
    "gpu_memory_utilization": "gpu",
    "speculative_config": "speculation",
    "spec_method": "speculation",
    "spec_model": "speculation",
    "spec_tokens": "speculation",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "replicas",
}
"""`engine_args` that a worker's own settings say, and which of them."""
_ITSELF = "is set by the worker itself; leave it out"
_ONE_REVISION = (
    "the worker reads config and tokenizer too, without it: name a folder with that revision as "
    "model"
)
REFUSED = {
    **dict.fromkeys(
        (
            "skip_tokenizer_init", "scheduler_cls", "scheduling_policy", "logprobs_mode",
            "max_logprobs", "enable_prefix_caching", "generation_config", "disable_log_stats",
            "runner", "convert", "stream_interval", "structured_outputs_config",
        ),
        _ITSELF,
    ),
    "distributed_executor_backend": (
        "Ray starts vLLM's actors in the replica's placement group; say tensor_parallel or "
        "pipeline_parallel"
    ),
    "nnodes": "Ray finds the GPUs, on several nodes too; say tensor_parallel or pipeline_parallel",
    "revision": _ONE_REVISION,
    "code_revision": _ONE_REVISION,
    "tokenizer_revision": _ONE_REVISION,
    "kv_transfer_config": (
        "a judge says how much of a prompt may come from the cache, which a connector does not "
        "follow; leave it out"
    ),
    "kv_sharing_fast_prefill": (
        "it leaves out log-probabilities of prompts, which judges read; leave it out"
    ),
}  # fmt: skip
"""`engine_args` that contradict what the worker does, and what to do about each."""
_CHECKED = (
    "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max",
    "draft_tensor_parallel_size", "rejection_sample_method",
)  # fmt: skip
"""Parameters of speculation whose type says all about them."""
_COUNTED = ("ngram", "draft_model")
"""Methods for which only `num_speculative_tokens` says how much is drafted."""

_READ = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512)
"""Tokens of passes that read: in recorded requests 8 % of all verifications, but 46 % of a gate's,
take more than 64, and less than 1 % more than 256. The others are for several requests at once."""
_GRAPHS = (
    "cudagraph_capture_sizes", "max_cudagraph_capture_size", "compilation_config", "enforce_eager",
)  # fmt: skip
"""`engine_args` that say what is captured."""


def check_engine_args(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Check `engine_args` by name.

    Raises:
        ConfigError: one is unknown to this vLLM, said elsewhere, or contradicts the worker.
    """
    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in engine_args:
        where = f"engine_args.{name}"
        if name in SAID_ELSEWHERE:
            raise ConfigError(f"{where}: say it as {SAID_ELSEWHERE[name]}")
        if name in REFUSED:
            raise ConfigError(f"{where}: {REFUSED[name]}")
        if name.startswith("data_parallel"):
            raise ConfigError(f"{where}: copies of a model are replicas here; say replicas")
        _want_known(where, name, known, known - REFUSED.keys() - SAID_ELSEWHERE.keys())
    return dict(engine_args)


def check_speculation(method: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return vLLM's `speculative_config`, each parameter checked; empty for no speculation.

    Raises:
        ConfigError: one is unknown to this vLLM, of another type, or missing.
    """
    if method is None or method.get("method", "vanilla") == "vanilla":
        return {}
    known = SpeculativeConfig.__pydantic_fields__
    for name, value in method.items():
        where = f"speculation.params.{name}"
        _want_known(where, name, known, known)
        if name not in _CHECKED:
            continue
        try:
            kind: Any = Annotated[known[name].annotation, None, *known[name].metadata]
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise ConfigError(f"{where}: {problem}, not {value!r}") from None
    if method["method"] in _COUNTED and "num_speculative_tokens" not in method:
        raise ConfigError(
            "speculation.params.num_speculative_tokens: is missing; say how many tokens are drafted"
        )
    return dict(method)


def capture_sizes(rows: int, drafts: int, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field for the passes, in tokens, of which vLLM captures CUDA graphs.

    By default vLLM captures up to twice the rows. Here it captures what decoding takes, for up to
    `rows` sequences with `drafts` drafted tokens each, and what verifications and prompts take.
    The field is left out if `engine_args` say what is captured.
    """
    if not engine_args.keys().isdisjoint(_GRAPHS):
        return {}
    streams = {1, 2, 4, *range(8, rows, 8), rows}
    decoded = {n * (1 + drafts) for n in streams if n <= rows}
    sizes = {*_READ, *(size for size in decoded if size <= max(_READ))}
    return {"cudagraph_capture_sizes": sorted(sizes)}


def _want_known(where: str, name: str, known: Collection[str], said: Collection[str]) -> None:
    if name not in known:
        close = get_close_matches(name, said, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{where}: this vLLM has no such argument{hint}")
