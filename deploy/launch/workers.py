"""Both workers in one process, for tools that need no service."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from deploy.service.extras import want
from deploy.service.worker_spec import Workers, WorkerSpec
from deploy.service.workers import WITH_VLLM, connect_worker, load_worker
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName

if TYPE_CHECKING:
    from workers.backend import LocalBackend
    from workers.remote.backend import RemoteBackend
    from workers.worker import EngineWorker, ModelWorker

    AnyWorker = EngineWorker[LocalBackend] | ModelWorker[RemoteBackend]


def without_engine(workers: Workers) -> list[WorkerName]:
    """Whose model vLLM is to run, if none is named."""
    vllm = [name for name, spec in workers.by_name().items() if spec.runs_vllm]
    return vllm if find_spec("vllm") is None else []


def want_engines(workers: Workers) -> None:
    """Raise ConfigError if an engine that is to run a model is not installed here."""
    for name, spec in workers.by_name().items():
        if spec.url is None and not spec.runs_vllm:
            want("engine", f"workers.{name}", "torch", "transformers")
    if missing := without_engine(workers):
        raise ConfigError(
            f"workers.{missing[0]} is for the engine vllm (auto on cuda), which is not installed "
            f"here: {WITH_VLLM}"
        )


def open_worker(spec: WorkerSpec) -> AnyWorker:
    """A worker in this process, which may hold another, or over the server `spec.url` names."""
    if spec.url is not None:
        return connect_worker(spec)
    # Two engines of our own share this process's cap; vLLM's are processes, each with a share.
    return load_worker(spec, share=spec.gpu if spec.runs_vllm else 1.0)


def load_pair(workers: Workers) -> dict[WorkerName, AnyWorker]:
    """Both workers, each in this process or over its server."""
    from workers.worker import EngineWorker

    small = open_worker(workers.small)
    try:
        return {"small": small, "large": open_worker(workers.large)}
    except BaseException:
        if isinstance(small, EngineWorker):  # a server has no connection yet
            with suppress(Exception):
                small.close()
        raise


async def close(workers: Iterable[AnyWorker]) -> None:
    """Stop the models and hang up on the servers."""
    from workers.worker import EngineWorker

    for worker in workers:
        if isinstance(worker, EngineWorker):
            worker.close()
        else:
            await worker.backend.aclose()
