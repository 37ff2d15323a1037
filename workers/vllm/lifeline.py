"""Ends vLLM's engine process when the process that started it is gone.

Ray kills a replica that does not answer by SIGKILL, which runs no handler: the engine, a child of
its own session, would keep the GPU's memory, and the next replica would find none.

vLLM gives no place of ours in its process but the scheduler. Its class is imported as the process
starts, before the model is loaded, and made once it is: the watch begins at the first of the two
that happens.
"""

from __future__ import annotations

import os
import signal
import threading
import time

INTERVAL_S = 1.0
PARENT = "BATON_VLLM_PARENT"
"""The variable that names the process which starts the engine."""


def announce() -> None:
    """In the parent, before the engine is started."""
    os.environ[PARENT] = str(os.getpid())


def follow_parent() -> None:
    """In the engine's process: kill it once its parent is gone, or now where it is gone already."""
    parent = int(os.environ.get(PARENT, os.getppid()))
    names = {thread.name for thread in threading.enumerate()}
    if parent == os.getpid() or __name__ in names:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=__name__, daemon=True).start()


def follow_parent_from_the_start() -> None:
    """At import: only a child of the announced process follows it, not a child's own children."""
    if os.environ.get(PARENT) == str(os.getppid()):
        follow_parent()
