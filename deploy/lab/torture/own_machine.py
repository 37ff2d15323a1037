"""Disk, clock and memory of a service of one's own in bad states; the machine's stay as they are.

The disk is a small file system for the service alone, the clock is libfaketime's, and memory is
what the kernel lets a process map.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from deploy.lab.torture.faults import first_process
from orchestrator.errors import WorkerError

DISK_BYTES: Final = 128 << 20
_NEW_MOUNTS: Final = 0x20000  # CLONE_NEWNS
_PRIVATE: Final = 0x44000  # MS_REC | MS_PRIVATE
_DETACH: Final = 2  # MNT_DETACH
_CHUNK: Final = b"x" * (1 << 16)


class OwnDisk:
    """A file system of `DISK_BYTES` at a folder, which this process alone sees, and what it starts
    from its main thread.

    Raises:
        WorkerError: this user may not mount one.
    """

    states: Sequence[str] = ("full",)
    refusals: Sequence[str] = ()

    def __init__(self, folder: Path) -> None:
        self._libc = libc = ctypes.CDLL(None, use_errno=True)
        at, size = os.fsencode(folder), b"size=%d" % DISK_BYTES
        if (
            libc.unshare(_NEW_MOUNTS)
            or libc.mount(b"none", b"/", None, _PRIVATE, None)
            or libc.mount(b"tmpfs", at, b"tmpfs", 0, size)
        ):
            why = os.strerror(ctypes.get_errno())
            raise WorkerError(
                f"the scenario disk mounts a small file system: {why}; run it as root"
            )
        self._at, self._filling = at, folder / "filling"

    def begin(self, state: str) -> None:
        with suppress(OSError), self._filling.open("wb", buffering=0) as file:
            while file.write(_CHUNK):
                pass

    def end(self, state: str) -> None:
        self._filling.unlink()

    def close(self) -> None:
        """The folder is an empty one again, as soon as nobody uses what was mounted there."""
        self._libc.umount2(self._at, _DETACH)


class OwnClock:
    """The wall clock of what is started with `environment`; clocks that only go forward stay.

    Raises:
        WorkerError: libfaketime is not installed.
    """

    refusals: Sequence[str] = ()
    _MOVED: Final = {
        "an hour ahead": "+3600",
        "an hour behind": "-3600",
        "a day ahead": "+86400",
        "a day behind": "-86400",
    }
    states: Sequence[str] = tuple(_MOVED)

    def __init__(self, folder: Path) -> None:
        libraries = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
        if not libraries:
            raise WorkerError("the scenario clock needs libfaketime: apt install faketime")
        self._file, self._library = folder / "clock", libraries[0]
        self.end("")

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def begin(self, state: str) -> None:
        self._set(self._MOVED[state])

    def end(self, state: str) -> None:
        self._set("+0")

    def _set(self, moved: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(moved, encoding="ascii")
        new.replace(self._file)  # it is read at every look at the clock


class OwnMemory:
    """A process of a kind that gets no more memory than it has: what it asks for then fails."""

    states: Sequence[str] = ("SmallWorker", "LargeWorker", "Orchestrator")
    refusals: Sequence[str] = ("503",)

    def __init__(self) -> None:
        self._limited: dict[str, tuple[int, tuple[int, int]]] = {}

    def begin(self, state: str) -> None:
        pid = first_process(state)
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        except (FileNotFoundError, ProcessLookupError):
            raise LookupError(state) from None  # it ended since
        self._limited[state] = pid, before

    def end(self, state: str) -> None:
        pid, before = self._limited.pop(state)
        with suppress(ProcessLookupError):  # it ended by it, and was replaced
            resource.prlimit(pid, resource.RLIMIT_AS, before)
