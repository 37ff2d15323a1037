"""The command line as a fixture, steady drawn tests, and an end to a run that a thread holds."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default as transports
from hypothesis import HealthCheck, settings

from deploy.cli import main as cli
from deploy.lab.reenact.clock import VirtualLoop

# Drawn tests draw the same each time, and do not go by the clock of a busy machine.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
# Nor does httpx, whose 5 s are the default argument of each of its functions.
for _wait in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _wait, 120.0)
# Reading the machine's certificates takes longer than a test's request: its clients share them.
transports.create_ssl_context = functools.cache(transports.create_ssl_context)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], Any]]:
    virtual = item.get_closest_marker("virtual_time")
    return {"loop": VirtualLoop if virtual else asyncio.new_event_loop}


SERVICES = "tests/deploy/service/"  # which start Ray: one process has them all


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SERVICES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests between processes file by file, for their fixtures' sake (`-n`)."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return SERVICES if nodeid.startswith(SERVICES) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


EXIT_S = 60.0  # the interpreter waits for every thread that is no daemon, however long


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    if hasattr(session.config, "workerinput"):  # one of several processes waits for the others
        return
    threading.Thread(target=_end, args=(int(exitstatus),), name="end", daemon=True).start()


def _end(status: int) -> None:
    """Say what holds a process that should have ended, and end it with the tests' own status."""
    time.sleep(EXIT_S)
    print(f"\nThe tests ended {EXIT_S:.0f} s ago and the process has not:", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    os._exit(status)


class Ran:
    """What a command did."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def baton(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["baton", *args])
        with pytest.raises(SystemExit) as info:
            cli.main()
        told = capsys.readouterr()
        return Ran(int(info.value.code or 0), told.out, told.err)

    return run
