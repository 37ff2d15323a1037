"""The service's port before its proxy listens there: whether it is free, and who answers on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.launch.ray_node import NotServing, spared_sigterm

LOOPBACK = "127.0.0.1"


def want_port(host: str | None, port: int, where: str) -> None:
    """Raise NotServing if nothing can listen there; `where`: in which option another port goes."""
    with socket.socket(socket.AF_INET6 if ":" in (host or "") else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or LOOPBACK, port))
        except OSError as error:
            raise NotServing(
                f"cannot listen on {host or LOOPBACK}:{port}: {error.strerror}; name another port "
                f"({where})"
            ) from None


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
        with spared_sigterm():
            thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
