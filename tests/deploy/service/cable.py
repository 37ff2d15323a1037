"""A network of which a test holds the cable."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

HERE, THERE = "10.213.77.1", "10.213.77.2"


class Cable:
    """A network namespace, and the only way into it. Wants root and iproute2."""

    def __init__(self, undo: ExitStack) -> None:
        # A run that was killed has left its network, at the same addresses.
        for left in Path("/run/netns").glob("baton*"):
            if not Path("/proc", left.name.removeprefix("baton")).exists():
                _ip("netns", "delete", left.name)
        self._name = f"baton{os.getpid()}"
        self.file = Path("/run/netns", self._name)
        here, self._there = f"ba{os.getpid()}", f"bb{os.getpid()}"
        _ip("netns", "add", self._name)
        undo.callback(_ip, "netns", "delete", self._name)
        _ip("link", "add", here, "type", "veth", "peer", "name", self._there)
        _ip("link", "set", self._there, "netns", self._name)
        _ip("address", "add", f"{HERE}/30", "dev", here)
        _ip("link", "set", here, "up")
        self._inside("address", "add", f"{THERE}/30", "dev", self._there)
        self._inside("link", "set", "lo", "up")
        self.mend()

    def cut(self) -> None:
        """Lose what is sent from now on, without a word to its sender."""
        self._inside("link", "set", self._there, "down")

    def mend(self) -> None:
        self._inside("link", "set", self._there, "up")
        self._inside("route", "replace", "default", "via", HERE)

    def loses(self) -> bool:
        """Whether something was sent and sent again, for no receipt came."""
        return re.search(" retrans:[1-9]", _run("ss", "-Htni", "dst", THERE)) is not None

    def _inside(self, *words: str) -> None:
        _ip("-netns", self._name, *words)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
