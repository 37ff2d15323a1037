"""A Ray of our own on this machine, gone at the end with all that it started."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from deploy.launch.environment import PROCESSES, start_at_once
from orchestrator.errors import BatonError

NODE_TRIES = 4
NODE_S = 300.0  # for Ray's own processes to start
SHUTDOWN_S = 5.0  # for replicas to shut down before they are killed
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl.h
OBJECTS_BYTES = 100 << 20  # nothing of ours travels through the object store


class NotServing(BatonError):
    """The deployment did not come up."""


@contextmanager
def own_ray(
    processes: int = PROCESSES,
    metrics_port: int | None = None,
    check: Callable[[], object] = lambda: None,
) -> Iterator[Any]:
    """A Ray of our own with this many workers, gone at the end with all that it started.

    Yields Ray's node, whose metrics are at `metrics_port` (None: at any). `check` is called while
    the node starts, and after Ray has set its own signal handlers. It may end the start by an
    exception: a signal handler's, raised inside Ray's own calls, hangs or crashes them. Call
    `deploy.launch.environment.prepare` before anything imports ray.
    """
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    before = _started()
    _adopt_orphans()
    folder = _own_folder()
    node = None
    try:
        start_at_once(processes)
        start = partial(_start_node, folder / "ray", processes, metrics_port, check)
        with spared_sigterm():
            node = _node(start)
        check()
        with spared_sigterm():  # else Ray's own handler aborts, until `check` has replaced it
            ray.init(
                address=node.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="serve",
            )
            check()
        yield node
    finally:
        _stop(before, node)


@contextmanager
def spared_sigterm() -> Iterator[None]:
    """Have SIGTERM wait in this thread, and for ever in processes and threads that start here.

    `timeout` and systemd send it to every process of a group. Ray's would end at once, and with
    them the answers under way, which this process lets finish. Threads leave it to the main one.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _adopt_orphans() -> None:
    """Become the parent of the workers that a dead raylet leaves, so that they are stopped, too."""
    with suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _node(start: Callable[[], Any]) -> Any:
    """Start Ray's node, again if it dies: it gives its agent 15 s, too few on a busy machine."""
    for _ in range(NODE_TRIES - 1):
        with suppress(NotServing):
            return start()
    return start()


def _start_node(
    folder: Path, processes: int, metrics_port: int | None, check: Callable[[], object]
) -> Any:
    """Start Ray's processes that a service needs.

    `ray.init` starts three more: for autoscaling, for logs in the terminal, and for the dashboard,
    even if there is none.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class ServingNode(Node):  # type: ignore[misc]
        def start_api_server(self, **_: object) -> None:
            """Start no dashboard."""

        def start_ray_processes(self) -> None:
            """Wait for the node, too: Ray itself gives it 30 s, too few on a busy machine."""
            super().start_ray_processes()
            try:
                _until_known(self, check)
            except NotServing:
                self.kill_all_processes(check_alive=False, allow_graceful=False)
                raise

    return ServingNode(
        RayParams(
            num_cpus=max(processes, os.cpu_count() or 1),  # as many workers start at once
            object_store_memory=OBJECTS_BYTES,
            temp_dir=str(folder),
            metrics_export_port=metrics_port,
            include_log_monitor=False,
            no_monitor=True,
        ),
        head=True,
        shutdown_at_exit=False,
        ray_init_cluster=True,
    )


def _until_known(node: Any, check: Callable[[], object]) -> None:
    """Wait until a node is registered; raise NotServing if it dies or takes too long."""
    from ray._private.services import get_node

    until = time.monotonic() + NODE_S
    while time.monotonic() < until and not node.dead_processes():
        check()
        with suppress(RuntimeError):
            get_node(node.gcs_address, node._node_id)
            return
        time.sleep(0.1)
    raise NotServing(f"Ray's node did not start; its logs are in {logs()}")


def _own_folder() -> Path:
    """A folder for Ray's logs and sockets that only this user can enter.

    Ray lets everybody on the machine write to the folders it makes, and does so again in each of
    its processes. What keeps others out is the folder above them.

    Raises:
        NotServing: there is something else of that name.
    """
    folder = _folder()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise NotServing(
            f"{folder} must be a folder of this user, for Ray's files: remove what is there, or "
            "name another place in RAY_TMPDIR"
        )
    folder.chmod(0o700)
    return folder


def _folder() -> Path:
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    return Path(place, f"baton-{os.getuid()}").absolute()


def logs() -> Path:
    return _folder() / "ray" / "session_latest" / "logs"


def _stop(before: set[psutil.Process], node: Any) -> None:
    import ray
    from ray import serve

    # While Serve shuts down, Ray reports that its own tasks failed, which is expected.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        # Serve would wait for a dead node, and Ray ends this process if a thread still waits.
        if ray.is_initialized() and not node.dead_processes():
            parting = threading.Thread(target=_quietly, args=(serve.shutdown,), daemon=True)
            parting.start()
            parting.join(SHUTDOWN_S)
        if node is not None:
            _quietly(ray.shutdown)
            _quietly(partial(node.kill_all_processes, check_alive=False, allow_graceful=False))
    _kill(_started() - before)  # orphans are ours by now


def _quietly(step: Callable[[], object]) -> None:
    with suppress(Exception):
        step()


def _started() -> set[psutil.Process]:
    """The processes that this one and its children have started."""
    return set(psutil.Process().children(recursive=True))


def _kill(processes: set[psutil.Process]) -> None:
    """Kill these processes, and wait for their end."""
    for one in processes:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(processes, timeout=SHUTDOWN_S)
