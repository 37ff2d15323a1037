"""A Ray of our own: a folder for this user alone, and a node that is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.launch import environment, ray_node
from deploy.launch.ray_node import NotServing


@pytest.mark.parametrize("there", ["link", "file", "open"])
def test_a_folder_of_others_is_not_used(
    there: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = tmp_path / f"baton-{os.getuid()}"
    if there == "open":  # ours, and made by hand
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        assert ray_node._own_folder().stat().st_mode & 0o777 == 0o700
        return
    if there == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.touch()
    with pytest.raises(NotServing, match="RAY_TMPDIR"):
        ray_node._own_folder()


def test_as_many_workers_start_as_the_service_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, other = "RAY_worker_maximum_startup_concurrency", "RAY_num_workers_soft_limit"
    monkeypatch.setenv(usual, "")  # so that it is taken away again
    monkeypatch.delenv(usual)
    monkeypatch.setenv(other, "3")  # the user's
    environment.start_at_once(5)
    assert (os.environ[usual], os.environ[other]) == ("5", "3")


def test_a_node_that_dies_as_it_starts_is_started_again() -> None:
    deaths = 3

    def start() -> str:
        nonlocal deaths
        deaths -= 1
        if deaths >= 0:
            raise NotServing("it died")
        return "node"

    assert ray_node._node(start) == "node"
    deaths = 4
    with pytest.raises(NotServing, match="it died"):
        ray_node._node(start)


def test_what_is_left_is_killed() -> None:
    stays = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended; no one waits for it
    gone = psutil.Process(zombie.pid)
    both = {psutil.Process(stays.pid), gone}
    assert both <= ray_node._started()
    ray_node._kill(both)
    assert not any(one.is_running() for one in both)


def test_started_processes_ignore_sigterm_and_this_one_does_not() -> None:
    code = "import signal, os; os.kill(0, signal.SIGTERM); print('lives')"
    with ray_node.spared_sigterm():
        kept = subprocess.run(
            [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True
        )
    ended = subprocess.run([sys.executable, "-c", code], start_new_session=True)
    assert (kept.stdout, ended.returncode) == ("lives\n", -signal.SIGTERM)
