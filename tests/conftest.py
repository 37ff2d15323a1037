"""The end of a test run: a thread that a test left behind must not hold the process for good."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

import pytest

EXIT_S = 60.0  # the interpreter waits for every thread that is no daemon, however long


def pytest_sessionfinish(exitstatus: int | pytest.ExitCode) -> None:
    threading.Thread(target=_end, args=(int(exitstatus),), name="end", daemon=True).start()


def _end(status: int) -> None:
    """Say what holds a process that should have ended, and end it with the tests' own status."""
    time.sleep(EXIT_S)
    print(f"\nThe tests ended {EXIT_S:.0f} s ago and the process has not:", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    os._exit(status)
