"""A process whose workers are both servers needs neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys

from deploy.launch.deployment_file import DEFAULT_FILE
from tests.house.http_process import measured

CHECK = """
import sys
from deploy.checking.files import check
assert check(sys.argv[1]).ok
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_the_http_process_of_a_remote_pair_imports_no_torch() -> None:
    imported = measured()["imported"]
    assert "ray" in imported  # it is the process that was meant
    assert not {"torch", "transformers"} & set(imported)


def test_a_deployment_file_of_servers_is_checked_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(DEFAULT_FILE.with_name("remote.yaml"))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
