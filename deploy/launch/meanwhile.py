"""The service's port while Ray starts: until its proxy listens there, this process answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(host: str, port: int) -> Iterator[None]:
    """Answer as a service that starts, until the block ends.

    Ray's proxy may listen on the port at the same time: both share it (SO_REUSEPORT), and until a
    replica runs, both answer alike.
    """
    import uvicorn

    from deploy.service.starting import starting_app

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
        listening.listen()  # now, so that no client is refused until the thread accepts it
        server = uvicorn.Server(
            uvicorn.Config(
                starting_app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
            )
        )
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
