"""Limits of containers, from files as both versions of control groups have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.control_groups import memory_limits, usable_cores

CPU, FILES = "4:cpu,cpuacct:/a/b\n0::/\n", ("cpu.cfs_quota_us", "cpu.cfs_period_us")


def group(folder: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """The root of the groups, and the file that names those of a process."""
    (folder / "own").write_text(groups)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder, folder / "own"


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/a/b\n", {"a/memory.max": "8000000000", "a/b/memory.max": "max"}, [8_000_000_000]),
        ("0::/\n", {"memory.max": "8000000000\n"}, [8_000_000_000]),
        ("4:memory:/gone\n0::/\n", {"memory/memory.limit_in_bytes": "4000000000"}, [4_000_000_000]),
        ("3:cpu:/x\n", {}, []),
    ],
)
def test_a_container_has_the_memory_that_it_may_take(
    groups: str, files: dict[str, str], limits: list[int], tmp_path: Path
) -> None:
    assert memory_limits(*group(tmp_path, groups, files)) == limits


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),  # half a core
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 8),  # more than there are
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        (CPU, {f"cpu,cpuacct/{FILES[0]}": "300000\n", f"cpu,cpuacct/{FILES[1]}": "100000\n"}, 3),
        (CPU, {f"cpu,cpuacct/{FILES[0]}": "-1\n", f"cpu,cpuacct/{FILES[1]}": "100000\n"}, 8),
        ("3:memory:/x\n", {}, 8),
    ],
)
def test_threads_are_no_more_than_a_quota_lets_compute(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(*group(tmp_path, groups, files)) == cores
