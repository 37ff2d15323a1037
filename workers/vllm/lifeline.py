"""Ends vLLM's engine process if the process that started it is gone.

Ray kills a replica that does not answer by SIGKILL, which runs no handler: the engine, a child in
another session, would keep the GPU's memory, and the next replica would find none.

vLLM takes no code of ours in that process but the scheduler. Its module is imported before the
model is loaded, its class made after it: the watch begins at the first of the two that happens.
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
    """Name this process as the parent, before the engine is started."""
    os.environ[PARENT] = str(os.getpid())


def follow_parent() -> None:
    """Kill this process, the engine's, once its parent is gone, or now if it is."""
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
    """Follow the announced process, if this is its child, not a child's child."""
    if os.environ.get(PARENT) == str(os.getppid()):
        follow_parent()
