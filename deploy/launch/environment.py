"""What Ray and torch read from the environment, once and for all when they are imported."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PROCESSES = 7
"""Ray's workers in a service of one replica of each kind: controller, proxy, store, orchestrator,
two models, and a task of the controller's."""


def start_at_once(processes: int) -> None:
    """Have Ray's node start this many workers at once, each with what all of them import; what the
    user has set stays. By default one waits for another's end of start on a machine of few cores.
    """
    for name in ("RAY_worker_maximum_startup_concurrency", "RAY_num_workers_soft_limit"):
        os.environ.setdefault(name, str(processes))


def prepare_torch() -> None:
    """Let torch's threads sleep soon while they wait; what the user has set stays.

    By default they spin for long, at the end of each of a pass's hundreds of kernels. If another
    process needs a core, such as the other worker, one of them is off its core, and the rest burn
    theirs until it is back: a token of 30 ms takes 600 to 1,600 (0.5B, two cores). If they sleep
    at once, their wake-ups take a quarter of a pass over eight tokens (1.5B in 8 bits, idle). A
    thousand turns take some microseconds, and cost nothing beside a busy process; 5,000 do. Call it
    before torch's import.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # for libraries of threads other than GNU's


def prepare() -> None:
    """Set what a Ray of our own needs; what the user has set stays. Call it before ray's import."""
    prepare_torch()
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for Ray's worker processes
    defaults = {
        # Ray's ports are open to the network and run whatever they are sent: only with a token.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Without clusters (on Linux too, whatever its name says) Ray listens on the loopback
        # address, also with its port for metrics, which has no token.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # A busy machine is slow, not broken: 30 s would end the start.
        "RAY_gcs_server_port_wait_time_s": "300",
        # Ray makes its workers nice (15): any other load on the machine would starve the models.
        "RAY_worker_niceness": "0",
        # A busy machine is slow, not broken: Serve's 5 and 10 s would kill its HTTP proxy.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        # By default a process keeps up to eight heaps a core, mostly empty.
        "MALLOC_ARENA_MAX": "2",
        "RAY_preload_python_modules": "ray.serve",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.service.proxy:middlewares",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
