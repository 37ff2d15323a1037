"""What control groups, as a container's, let this process take of its machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def machine_memory() -> int:
    """Return the bytes of the machine's memory that this process may take."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([memory, *memory_limits()])


def memory_limits(root: Path = ROOT, own: Path = OWN) -> list[int]:
    """Return the limits of this process's memory in bytes, its groups' and those around them."""
    said = (
        _text(folder / ("memory.limit_in_bytes" if controlled else "memory.max"))
        for folder, controlled in _groups("memory", root, own)
    )
    return [int(text) for text in said if text.isdigit()]


def usable_cores(root: Path = ROOT, own: Path = OWN) -> int:
    """Return how many threads may compute all the time: a group's quota may be less than the cores
    that the process may run on, and more threads than it allows pause together."""
    cores = len(os.sched_getaffinity(0))
    for folder, controlled in _groups("cpu", root, own):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controlled else ("cpu.max",)
        match " ".join(_text(folder / name) for name in names).split():
            case [quota, period] if quota.isdigit() and period.isdigit():
                cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _groups(controller: str, root: Path, own: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's group and of those around it, and whether the controller
    has a separate hierarchy (version 1)."""
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers
        inner = top / group.lstrip("/")
        for folder in (inner, *inner.parents):  # within a container the group may be the root
            yield folder, bool(controllers)
            if folder == top:
                break


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
