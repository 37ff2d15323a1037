"""From the name of a checkpoint to a worker over vLLM's engine."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, Unpack

from pydantic import ValidationError
from transformers import GenerationConfig
from vllm import AsyncEngineArgs
from vllm import __version__ as vllm_version
from vllm.usage.usage_lib import UsageContext
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import PrometheusStatLogger

from orchestrator.errors import ConfigError
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load_tokenizer
from workers.options import DEFAULTS, LoadOptions
from workers.reporting import first_line
from workers.text.generation_config import sampling_defaults
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.vllm import is_lossy
from workers.vllm.arguments import capture_sizes, check_engine_args, check_speculation
from workers.vllm.backend import Capacity, VllmBackend
from workers.vllm.counter import EngineCounter
from workers.vllm.lifeline import announce
from workers.vllm.output import EngineOutput
from workers.vllm.requests import SHOWN
from workers.vllm.scheduler import AsyncJudgeScheduler, JudgeScheduler
from workers.worker import EngineWorker

log = logging.getLogger(__name__)

TRIED = "0.32"
"""vLLM's release whose scheduler `workers.vllm.scheduler` was written for."""
CPU_BLOCK = 32
"""Tokens of a block of the cache on CPUs: vLLM's 128 would have a judge read 127 tokens again."""
CPU_CHUNK = 512
"""Tokens of a pass on CPUs: of a large model vLLM's 2,048 take longer than a health check waits."""


class VllmOptions(LoadOptions, total=False):
    """What vLLM may be loaded with.

    Attributes:
        dtype: of the weights; None is float32 on the CPU, else the checkpoint's.
        tensor_parallel, pipeline_parallel: numbers of GPUs.
        engine_args: further fields of vLLM's `AsyncEngineArgs`.
    """

    dtype: str | None
    tensor_parallel: int
    pipeline_parallel: int
    engine_args: Mapping[str, Any]


VLLM: Final[VllmOptions] = {
    **DEFAULTS,
    "device": "cuda",
    "dtype": None,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "engine_args": {},
}


def load(model: str | Path, **options: Unpack[VllmOptions]) -> EngineWorker[VllmBackend]:
    """Return a worker over a checkpoint (a folder, a Hugging Face id, or `embedded:NAME`), whose
    engine runs until `worker.close()`.

    Raises:
        ConfigError: the checkpoint or a parameter cannot be used; the message says why.
    """
    check_version(vllm_version)
    chosen: VllmOptions = {**VLLM, **options}
    rows, device, threads = chosen["rows"], chosen["device"], chosen["threads"]
    extra = check_engine_args(chosen["engine_args"])
    speculation = check_speculation(chosen["speculation"])
    path = str(resolve(model))
    tokenizer, sampling = load_tokenizer(path, chosen["thinking"]), sampling_defaults(path)
    _prepare_environment(device)
    arguments = _engine_arguments(path, chosen, speculation)
    output = EngineOutput()
    try:
        with _threads(device, threads):
            config = AsyncEngineArgs(**(arguments | extra)).create_engine_config(
                UsageContext.OPENAI_API_SERVER  # its defaults for a pass are those of servers
            )
        scheduling = config.scheduler_config
        scheduling.scheduler_cls = (
            AsyncJudgeScheduler if scheduling.async_scheduling else JudgeScheduler
        )
        context = config.model_config.max_model_len
        if device == "cpu" and config.cache_config.kv_cache_memory_bytes is None:
            config.cache_config.kv_cache_memory_bytes = 2 * rows * _context_bytes(config)
        counter = EngineCounter()
        announce()
        _keep_blocked_signals()
        with _alone_on_the_gpu(device), _threads(device, threads):
            engine = AsyncLLM(
                config,
                Executor.get_class(config),
                log_stats=False,
                log_requests=False,
                stat_loggers=[lambda *_: counter],
            )
        # vLLM's own metrics, which nothing serves here, are counted before each output is read.
        engine.logger_manager.stat_loggers = [
            one
            for one in engine.logger_manager.stat_loggers
            if not isinstance(one, PrometheusStatLogger)
        ]
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        summary = _summary(error)
        if "root cause above" in summary:
            summary = output.explain()
        raise ConfigError(f"vLLM cannot load {model}: {summary}") from error
    tokens = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
    vocabulary = config.model_config.get_vocab_size()
    ends = tokenizer.ends | _stop_token_ids(config.model_config, tokenizer)
    run_ahead = 0 if speculation else chosen["run_ahead"]
    backend = VllmBackend(
        engine,
        PromptRenderer(tokenizer, vocabulary),
        frozenset(token for token in ends if token < vocabulary),
        Capacity(rows, chosen["queue"], tokens, context, run_ahead),
        counter,
        sampling=sampling,
        lossy=is_lossy(speculation),
    )
    return EngineWorker(backend)


def _engine_arguments(
    path: str, options: VllmOptions, speculation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of vLLM's `AsyncEngineArgs` that `engine_args` do not give."""
    device, rows = options["device"], options["rows"]
    tensor, pipeline = options["tensor_parallel"], options["pipeline_parallel"]
    arguments: dict[str, Any] = {
        "model": path,
        # Its tokenizer serves its grammars alone: prompts and texts are made and read by ours.
        "structured_outputs_config": {"backend": "guidance"},
        "dtype": options["dtype"] or ("float32" if device == "cpu" else "auto"),
        "max_model_len": options["max_len"],
        "max_num_seqs": rows,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "max_logprobs": SHOWN,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "trust_remote_code": False,
    }
    if (share := options["share"]) < 1:
        arguments["gpu_memory_utilization"] = share
    if tensor * pipeline > 1 and device == "cuda":
        arguments["distributed_executor_backend"] = "ray"  # in the replica's placement group
    if device == "cpu":
        arguments |= {"block_size": CPU_BLOCK, "enforce_eager": True}
        arguments["max_num_batched_tokens"] = max(CPU_CHUNK, 16 * rows)
    else:
        drafts = speculation.get("num_speculative_tokens") or 0
        arguments |= capture_sizes(rows, drafts, options["engine_args"])
    if speculation:
        arguments["speculative_config"] = dict(speculation)
        arguments["per_request_spec_decode_metrics"] = "detailed"
    return arguments


def check_version(version: str) -> None:
    """Warn of a vLLM that was not tried; raise ConfigError if its scheduler is another one."""
    wanted = ("get_computed_blocks", "prefix_cache_lookup_enabled", "create_kv_cache_blocks")
    lacking = [name for name in wanted if not hasattr(KVCacheManager, name)]
    if lacking:
        raise ConfigError(
            f"vLLM {version} has no KVCacheManager.{lacking[0]}, by which judges read the last "
            f"step alone: install vllm=={TRIED}.*"
        )
    if not version.startswith(f"{TRIED}."):
        log.warning(
            "vLLM is %s, and Baton was tried with %s: install vllm==%s.* if anything is odd",
            version, TRIED, TRIED,
        )  # fmt: skip


def _prepare_environment(device: str) -> None:
    """Set what vLLM and its processes read from the environment."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if device == "cpu":
        # Bound to cores, two workers on one machine would share the first ones.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # Compiling takes a C++ compiler, and 20 s in the first request of each process.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def _keep_blocked_signals() -> None:
    """Have vLLM's processes ignore SIGTERM if this one does, as under `baton serve`.

    What tracks the resources of Python's processes starts with the first of them, and unblocks
    SIGINT and SIGTERM in the thread that starts it.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _threads(device: str, threads: int | None) -> Iterator[None]:
    """Let a process that starts now have this many threads; restore the environment after it."""
    if device != "cpu" or threads is None:
        yield
        return
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _alone_on_the_gpu(device: str) -> Iterator[None]:
    """Load one engine after the other on a GPU: vLLM measures its need by what memory goes."""
    if device == "cpu":
        yield
        return
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace("/", "-")
    path = Path(gettempdir()) / f"baton-vllm-{gpus}.lock"
    with suppress(OSError):  # another user's is there
        path.touch()
        path.chmod(0o644)
    with open(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a kill releases it too
        try:
            yield
        finally:  # closing alone does not: the engine's process, if forked, has the file open
            fcntl.flock(lock, fcntl.LOCK_UN)


def _context_bytes(config: Any) -> int:
    """Return the bytes of the cache for one sequence of the model's context length."""
    model, cache = config.model_config, config.cache_config
    blocks = -(-model.max_model_len // cache.block_size) + 1
    per_token = (
        2
        * model.get_num_layers(config.parallel_config)
        * model.get_num_kv_heads(config.parallel_config)
        * model.get_head_size()
        * model.dtype.itemsize
    )
    return int(blocks * cache.block_size * per_token)


def _stop_token_ids(model: Any, tokenizer: Tokenizer) -> set[int]:
    """Return the end-of-turn ids of the generation config (else the config) and tokenizer."""
    try:
        declared = GenerationConfig.from_pretrained(model.model).eos_token_id
    except (OSError, ValueError):  # there is none
        declared = model.hf_config.eos_token_id
    found = declared if isinstance(declared, list) else [declared]
    return {token for token in [tokenizer.eos_id, *found] if token is not None}


def _summary(error: BaseException) -> str:
    """Return what is wrong in one line; of pydantic's errors the first."""
    if not isinstance(error, ValidationError):
        return first_line(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ").strip().partition("\n")[0]
    return f"{where}: {what}" if where else what
