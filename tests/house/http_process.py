"""Import time and memory of the HTTP process whose workers are both servers of somebody else's.

    python -m tests.house.http_process

builds the application as a replica of the ingress does (`deploy.app.Orchestrator`), in a process
of its own that asks nobody anything, and prints one line of JSON: CPU seconds of the process
until the application stands, its peak memory, and which heavy libraries were imported. Where
`python -m` finds another commit's tree first, that commit is measured.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from importlib import import_module
from typing import Any
from unittest.mock import Mock

HEAVY = ("torch", "transformers", "ray", "pandas", "scipy")
WORKER = {"url": "http://127.0.0.1:9/v1", "model": "m", "tokenizer": "embedded:large"}


def build() -> Any:
    """The ASGI application of a deployment with two remote workers."""
    import ray
    import ray.serve.context

    # There is no Serve here, and none is to be started.
    ray.serve.context._get_global_client = lambda: None
    context = Mock(app_name="baton", deployment="Orchestrator")
    context.replica_id.unique_id = context.replica_tag = "one"
    ray.serve.get_replica_context = lambda: context
    ray.serve.get_deployment_handle = Mock()
    ray.init = Mock(side_effect=RuntimeError("nothing here may start Ray"))
    app = import_module("deploy.app")  # its `Args` lay elsewhere once

    args = app.Args.model_validate(
        {"workers": {"small": WORKER, "large": WORKER}, "store": "memory"}
    )
    plain = app.Orchestrator.__bases__[0]  # what `serve.ingress` has wrapped
    return plain(args, None, None, Mock()).__serve_build_asgi_app__()


def measure() -> dict[str, Any]:
    """What building the application costs this process, which must be a fresh one."""
    build()
    return {
        "cpu_seconds": round(time.process_time(), 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "imported": [name for name in HEAVY if name in sys.modules],
    }


def measured(folder: str | None = None) -> dict[str, Any]:
    """`measure` in a process of its own, of the tree in `folder` (None: this one)."""
    code = "import json, tests.house.http_process as here; print(json.dumps(here.measure()))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=folder
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    print(json.dumps(measured()))
