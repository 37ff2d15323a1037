"""A process whose workers are both servers needs neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys

from deploy.launch.deployment_file import DEFAULT_FILE

HEAVY = 'print(*sorted({"torch", "transformers", "ray"} & sys.modules.keys()))'
BUILD = f"""
import sys
from unittest.mock import Mock
import ray, ray.serve.context
ray.serve.context._get_global_client = lambda: None  # no Serve is here, and none is started
context = Mock(app_name="baton", deployment="Orchestrator")
context.replica_id.unique_id = context.replica_tag = "one"
ray.serve.get_replica_context = lambda: context
ray.serve.get_deployment_handle = Mock()
ray.init = Mock(side_effect=RuntimeError("nothing here may start Ray"))
from deploy import app
server = {{"url": "http://127.0.0.1:9/v1", "model": "m", "tokenizer": "embedded:large"}}
workers = {{"small": server, "large": server}}
args = app.Args.model_validate({{"workers": workers, "store": "memory"}})
plain = app.Orchestrator.__bases__[0]  # what `serve.ingress` has wrapped
plain(args, None, None, Mock()).__serve_build_asgi_app__()
{HEAVY}
"""
CHECK = f"""
import sys
from deploy.checking.files import check
assert check(sys.argv[1]).ok
{HEAVY}
"""


def imported(code: str) -> str:
    """The heavy libraries that code has imported at its end."""
    command = [sys.executable, "-c", code, str(DEFAULT_FILE.with_name("remote.yaml"))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_the_http_process_of_a_remote_pair_imports_no_torch() -> None:
    assert imported(BUILD) == "ray"


def test_a_deployment_file_of_servers_is_checked_without_torch() -> None:
    assert imported(CHECK) in ("", "ray")
