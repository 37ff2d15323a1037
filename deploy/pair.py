"""From a worker's part of the deployment file to a worker."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from deploy.config import Workers, WorkerSpec
from orchestrator.actions import WorkerName

if TYPE_CHECKING:
    from workers.local import LocalWorker


def load_worker(spec: WorkerSpec) -> LocalWorker:
    """A worker in this process; `close()` stops it.

    Raises:
        ConfigError: the model or a parameter cannot be used.
    """
    # Here, not above: the orchestrator and the command line need no torch (seconds, and memory).
    from transformers.utils.logging import disable_progress_bar

    from workers.loading import load

    disable_progress_bar()
    assert spec.model is not None
    return load(
        spec.model,
        device=spec.device,
        dtype=None if spec.dtype == "auto" else spec.dtype,
        speculation={"method": spec.speculation.method, **spec.speculation.params},
        rows=spec.rows,
        max_len=spec.max_len,
        threads=spec.threads,
    )


def load_pair(workers: Workers) -> dict[WorkerName, LocalWorker]:
    """Both workers in this process."""
    small = load_worker(workers.small)
    try:
        return {"small": small, "large": load_worker(workers.large)}
    except BaseException:
        with suppress(Exception):
            small.close()
        raise
