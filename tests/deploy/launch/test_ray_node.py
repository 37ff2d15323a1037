"""A Ray of our own: a folder for this user alone, and a node that is started again."""

from __future__ import annotations

import os
from pathlib import Path

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


def test_a_node_that_dies_as_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = 3

    def start(folder: Path, processes: int) -> str:
        nonlocal deaths
        deaths -= 1
        if deaths >= 0:
            raise NotServing("it died")
        return str(folder)

    monkeypatch.setattr(ray_node, "_start_node", start)
    assert ray_node._node(tmp_path, 5) == str(tmp_path)
    deaths = 4
    with pytest.raises(NotServing, match="it died"):
        ray_node._node(tmp_path, 5)
