"""The service under attack, which may be started for this."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from deploy.lab.peers.servers import baton
from deploy.lab.processes import running
from deploy.launch.deployment_file import DEFAULT_FILE

KINDS: Final = ("SmallWorker", "LargeWorker", "Orchestrator", "ServeController", "ProxyActor")
KEYS: Final = "BATON_TORTURE_KEYS"


class OwnProcesses:
    """The processes below a service's first one, by kind."""

    def __init__(self, root: int) -> None:
        self._root = root

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to the oldest process of a kind; return what sends it another.

        Raises:
            LookupError: there is none.
        """
        for one in sorted(self._tree(), key=lambda one: one.pid):
            with suppress(psutil.Error):
                line = " ".join(one.cmdline())
                if line.startswith("ray::") and kind in line:
                    one.send_signal(sign)
                    return partial(_signal_again, one)
        raise LookupError(kind)

    def _tree(self) -> list[psutil.Process]:
        tree: list[psutil.Process] = psutil.Process(self._root).children(recursive=True)
        return tree


def _signal_again(process: psutil.Process, sign: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):  # Serve took it for dead and replaced it
        process.send_signal(sign)


@dataclass(frozen=True, slots=True)
class AttackedService:
    """The service under attack; `processes` is None for one that others started."""

    url: str
    key: str | None = None
    processes: OwnProcesses | None = None


@contextmanager
def own_service() -> Iterator[AttackedService]:
    """Serve the local deployment for the block."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what was started, as by Ctrl-C
    key = secrets.token_hex(16)
    with TemporaryDirectory(prefix="bt-") as name:
        folder, changes = Path(name), {"auth": {"api_keys_env": KEYS}}
        how = baton(DEFAULT_FILE, folder, lambda args: args.update(changes))
        with running(replace(how, env={KEYS: key}), folder / "log") as server:
            yield AttackedService(server.url, key, OwnProcesses(server.process.pid))
