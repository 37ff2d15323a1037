"""What Ray reads from the environment, once and for all when it is imported."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def prepare() -> None:
    """Set what a Ray of our own needs; what the user has set stays. Call it before ray's import."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for Ray's worker processes
    defaults = {
        # Ray's ports are open to the network and run whatever they are sent: only with a token.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray makes its workers nice (15): any other load on the machine would starve the models.
        "RAY_worker_niceness": "0",
        # A busy machine is slow, not broken: Serve's 5 and 10 s would kill its HTTP proxy.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_LOG_TO_STDERR": "0",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
