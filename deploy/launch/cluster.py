"""A small Ray of our own on this machine, and a deployment on it; all gone at the end."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from deploy.launch.deployment_file import Deployment
from deploy.launch.environment import PROCESSES
from deploy.launch.meanwhile import answering
from deploy.launch.watch import Watch
from deploy.service.config import Workers
from orchestrator.errors import BatonError

NODE_TRIES = 4
NODE_S = 300.0  # for Ray's own processes to start
READY_S = 300.0  # to answer, once Serve says that everything runs
TOLD_S = 60.0  # between two words on what is still starting
SHUTDOWN_S = 5.0  # for replicas to shut down before they are killed
ASK_S, CUT_S = 5.0, 0.5  # for replicas to answer, and for what they send last to arrive
LOOPBACK = "127.0.0.1"
DAEMONS = ("gcs_server", "raylet")
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl.h
OBJECTS_BYTES = 100 << 20  # nothing of ours travels through the object store


class NotServing(BatonError):
    """The deployment did not come up."""


class NodeDied(BatonError):
    """Ray's node is gone, and with it every port of the service."""


class RunningService:
    """A deployment that answers.

    Args:
        application: its name in Serve.
        workers: the models' part of its deployment file.
        node: process ids of Ray's own daemons, without which nothing is answered any more.
    """

    def __init__(self, url: str, application: str, workers: Workers, node: set[int]) -> None:
        self.url, self._application, self._node = url, application, node
        self._watch = Watch(url, workers)

    def check(self) -> list[str]:
        """What has died since the last check, a line each.

        Raises:
            NodeDied: one of the node's processes has ended.
        """
        if dead := [pid for pid in self._node if not _runs(pid)]:
            raise NodeDied(
                f"Ray's node has died (process {dead[0]}), and the service with it: start it "
                f"again; Ray's logs are in {_logs()}"
            )
        return list(self._watch.look())

    def drain(self, seconds: float, enough: Callable[[], bool]) -> int:
        """Take on no more requests and wait for the answers that are under way.

        What is not done after `seconds`, or as soon as `enough()`, ends with an error event.
        Returns how many answers that are.
        """
        until = time.monotonic() + seconds
        while live := self._live():
            if enough() or time.monotonic() >= until:
                self._ask_all("cut")
                time.sleep(CUT_S)  # for the events to arrive
                break
            time.sleep(0.1)
        return live

    def _live(self) -> int:
        """Answers under way; a replica that does not say counts as one, for it may have some."""
        answers = self._ask_all("drain")
        if answers is None:
            return 1
        return sum(answer if isinstance(answer, int) else 1 for answer in answers)

    def _ask_all(self, method: str) -> list[Any] | None:
        """What every replica of the orchestrator says to a call, an exception among it; None where
        they were not asked."""
        from ray import serve
        from ray.serve.exceptions import RayServeException

        try:
            handle = serve.get_app_handle(self._application)
            return list(handle.broadcast(method).results(timeout_s=ASK_S, return_exceptions=True))
        except (TimeoutError, RayServeException):
            return None


@contextmanager
def serving(
    deployment: Deployment,
    *,
    ready_s: float | None = None,
    on_ray: Callable[[], object] = lambda: None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[RunningService]:
    """The deployment, up and ready on a separate Ray.

    A model may be downloaded for hours, so there is no end to it while Serve says that something is
    still starting, unless `ready_s` names one. `on_ray` is called once Ray runs, which has then put
    its own handlers of signals in place; `tell` with what a deployment needs that has no place yet,
    and every minute with what is still starting.

    Nothing that was started outlives the block, not even after an exception. Call
    `deploy.launch.environment.prepare` before anything imports ray.

    Raises:
        NotServing: the port is taken, GPUs are missing, a deployment failed, or it was not ready
            in time.
    """
    options = deployment.serve.http_options
    _want_port(options.host, options.port)
    with ExitStack() as meanwhile:
        meanwhile.enter_context(answering(options.host or LOOPBACK, options.port))
        with own_ray() as before:
            daemons = {pid for pid in descendants(os.getpid()) - before if _is_daemon(pid)}
            on_ray()
            if not deployment.serve.applications[0].deployments:  # which may ask for other GPUs
                _want_gpus(deployment.args.workers)
            client = _start_serve(deployment)
            meanwhile.close()
            # As `serve run FILE` does it: the whole file counts, with its `deployments` overrides.
            client.deploy_apps(deployment.serve, _blocking=False)
            _wait(deployment, ready_s, tell)
            name = deployment.serve.applications[0].name
            yield RunningService(deployment.url, name, deployment.args.workers, daemons)


@contextmanager
def own_ray() -> Iterator[set[int]]:
    """A Ray of our own, gone at the end with all that it started.

    Gives the process ids that this process had below it before. Call
    `deploy.launch.environment.prepare` before anything imports ray.
    """
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    before = descendants(os.getpid())
    _adopt_orphans()
    folder = _own_folder()
    node = None
    try:
        node = _node(folder / "ray")
        ray.init(
            address=node.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="serve",
        )
        yield before
    finally:
        _stop(before, node)


def _adopt_orphans() -> None:
    """Become the parent of the workers that a dead raylet leaves, so that they are stopped, too."""
    with suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _node(folder: Path) -> Any:
    """Start Ray's node, again if it dies: it waits 15 s for its agent, too few on a busy machine.

    Raises:
        NotServing: it died each time.
    """
    for _ in range(NODE_TRIES - 1):
        with suppress(NotServing):
            return _start_node(folder)
    return _start_node(folder)


def _start_node(folder: Path) -> Any:
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
                _until_known(self)
            except NotServing:
                self.kill_all_processes(check_alive=False, allow_graceful=False)
                raise

    return ServingNode(
        RayParams(
            num_cpus=max(PROCESSES, os.cpu_count() or 1),  # as many workers start at once
            object_store_memory=OBJECTS_BYTES,
            temp_dir=str(folder),
            include_log_monitor=False,
            no_monitor=True,
        ),
        head=True,
        shutdown_at_exit=False,
        ray_init_cluster=True,
    )


def _until_known(node: Any) -> None:
    """Wait until a node is registered.

    Raises:
        NotServing: it has died, or takes too long.
    """
    from ray._private.services import get_node

    until = time.monotonic() + NODE_S
    while time.monotonic() < until and not node.dead_processes():
        with suppress(RuntimeError):
            get_node(node.gcs_address, node._node_id)
            return
        time.sleep(0.1)
    raise NotServing(f"Ray's node did not start; its logs are in {_logs()}")


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


def _logs() -> Path:
    return _folder() / "ray" / "session_latest" / "logs"


def _start_serve(deployment: Deployment) -> Any:
    from ray.serve._private.api import serve_start

    for last in (False, False, True):
        try:
            return serve_start(
                http_options=deployment.serve.http_options.model_dump(),
                proxy_location=deployment.serve.proxy_location,
                global_logging_config=deployment.serve.logging_config,
            )
        except TimeoutError:  # a busy machine; the next call finds what this one has started
            if last:
                raise
    raise AssertionError


def _want_port(host: str | None, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in (host or "") else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or LOOPBACK, port))
        except OSError as error:
            raise NotServing(
                f"cannot listen on {host}:{port}: {error.strerror}; name another port "
                "(--port, or http_options.port in the file)"
            ) from None


def _want_gpus(workers: Workers) -> None:
    """Raises NotServing where Ray has fewer GPUs than the workers need together: it would wait."""
    import ray

    there = ray.cluster_resources().get("GPU", 0.0)
    wanted = {
        name: spec.gpus * spec.gpu * spec.replicas.min
        for name, spec in workers.by_name().items()
        if spec.on_gpu
    }
    if sum(wanted.values()) > there + 1e-9:
        each = ", ".join(f"workers.{name} {share:g}" for name, share in wanted.items())
        shared = (
            there and len(wanted) > 1 and all(one.gpus == 1 for one in workers.by_name().values())
        )
        share = ", or let the workers share one (gpu: 0.25)" if shared else ""
        raise NotServing(
            f"the file asks for more GPUs than the {there:g} of this machine: {each}; "
            f"write device: cpu{share}, or serve it where they are"
        )


def _wait(deployment: Deployment, ready_s: float | None, tell: Callable[[str], object]) -> None:
    from ray import serve

    told: set[str] = set()
    began = time.monotonic()
    starting_at = said_at = began  # when something was still starting, and when that was printed
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while True:
            with suppress(httpx.HTTPError):
                if client.get(f"{deployment.url}/ready").status_code == 200:
                    return
            starting: list[str] = []
            for name, app in serve.status().applications.items():
                if app.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                    messages = [app.message, *(d.message for d in app.deployments.values())]
                    raise NotServing(f"{name} did not start: {_gist(messages)}")
                if app.status != "RUNNING":
                    waited_for = (
                        d for d, one in app.deployments.items() if one.status != "HEALTHY"
                    )
                    starting.append(", ".join(waited_for) or name)
                for deployed, status in app.deployments.items():
                    if deployed not in told and (needs := _missing(status.message)):
                        told.add(deployed)
                        tell(f"{deployed} waits for a place: a replica needs {needs}")
            now = time.monotonic()
            if starting:
                starting_at = now
            elif now - starting_at > READY_S:
                raise NotServing(
                    f"everything has run for {READY_S:g} s and /ready says no; Ray's logs are in "
                    f"{_logs()}"
                )
            if ready_s is not None and now - began > ready_s:
                still = f"still starting: {', '.join(starting)}; " if starting else ""
                raise NotServing(
                    f"not ready within {ready_s:g} s; {still}Ray's logs are in {_logs()}"
                )
            if starting and now - said_at > TOLD_S:
                said_at = now
                minutes = round((now - began) / 60)
                tell(f"Still starting after {minutes} min: {', '.join(starting)} (logs: {_logs()})")
            time.sleep(0.25)


def _missing(message: str) -> str | None:
    """What a replica needs more of than there is, by Serve's words; a slow start needs nothing."""
    found = re.search(r"each replica: (\{.*?\}), total resources available: (\{.*?\})", message)
    if found is None:
        return None
    needed, there = json.loads(found[1]), json.loads(found[2])
    short = any(size > there.get(name, 0) for name, size in needed.items())
    return f"{found[1]}, total resources available: {found[2]}" if short else None


def _gist(messages: list[str]) -> str:
    """The cause: the last exception of the longest traceback."""
    lines = [line.strip() for message in messages for line in message.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith("Error")]
    gist = (errors or lines or ["no reason was given"])[-1]
    return re.sub(rf"^{BatonError.__module__}\.\w+: ", "", gist)


def _stop(before: set[int], node: Any) -> None:
    import ray
    from ray import serve

    ours = descendants(os.getpid()) - before
    # While Serve shuts down, Ray reports that its own tasks failed, which is expected.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        if ray.is_initialized():
            parting = threading.Thread(target=_quietly, args=(serve.shutdown,), daemon=True)
            parting.start()
            parting.join(SHUTDOWN_S)
            ours |= descendants(os.getpid()) - before
            _quietly(ray.shutdown)
        if node is not None:
            _quietly(partial(node.kill_all_processes, check_alive=False, allow_graceful=True))
    _reap(ours)


def _quietly(step: Callable[[], object]) -> None:
    with suppress(Exception):
        step()


def _reap(pids: set[int]) -> None:
    """Wait until these processes are gone; what is left after a while is killed."""
    until = time.monotonic() + SHUTDOWN_S
    while pids and time.monotonic() < until:
        pids = {pid for pid in pids if _runs(pid)}
        time.sleep(0.05)
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> set[int]:
    """Process ids of the children of `pid`, and of theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    pids: set[int] = set()
    new = children.get(pid, [])
    while new:
        pids.update(new)
        new = [child for parent in new for child in children.get(parent, [])]
    return pids


def _is_daemon(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").resolve().name in DAEMONS
    return False


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
