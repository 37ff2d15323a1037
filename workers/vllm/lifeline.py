"""Ends vLLM's engine process when the process that started it is gone.

Ray kills a replica that does not answer by SIGKILL, which runs no handler: the engine, a child of
its own session, would keep the GPU's memory, and the next replica would find none.
"""

from __future__ import annotations

import os
import signal
import threading
import time

INTERVAL_S = 1.0


def follow_parent() -> None:
    """Kill this process, from a thread, once its parent has changed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
