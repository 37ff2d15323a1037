"""A deployment on a Ray of our own, from its start to the last answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any

import httpx

from deploy.launch.deployment_file import Deployment
from deploy.launch.environment import PROCESSES
from deploy.launch.meanwhile import LOOPBACK, answering, want_port
from deploy.launch.ray_node import NotServing, logs, own_ray
from deploy.launch.watch import Watch
from deploy.service.config import Args
from deploy.service.scaling import gpus_for
from deploy.service.worker_spec import Workers
from orchestrator.errors import BatonError

READY_S = 300.0  # to answer, once Serve says that everything runs
SOON_S = 3.0  # the same, before it is said why it does not
TOLD_S = 60.0  # between two words on what is still starting
ASK_S, CUT_S = 5.0, 0.5  # for replicas to answer, and for what they send last to arrive


class NodeDied(BatonError):
    """Ray's node is gone, and with it every port of the service."""


class RunningService:
    """A deployment that answers, on a node of Ray's."""

    def __init__(self, url: str, application: str, workers: Workers, node: Any) -> None:
        self.url, self._application, self._node = url, application, node
        self._watch = Watch(url, workers)

    def check(self) -> list[str]:
        """What has died since the last check, a line each.

        Raises:
            NodeDied: one of the node's processes has ended.
        """
        for kind, process in self._node.dead_processes():
            raise NodeDied(
                f"Ray's node has died ({kind}, process {process.pid}), and the service with it: "
                f"start it again; Ray's logs are in {logs()}"
            )
        return list(self._watch.look())

    def drain(self, seconds: float, enough: Callable[[], bool]) -> int:
        """Take no more requests, wait for the answers under way, and return how many were cut short
        after `seconds` or once `enough()` is true."""
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
        """Return what each orchestrator replica answers to a call, or its exception; None if the
        call failed."""
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
    metrics_port: int | None = None,
    check: Callable[[], object] = lambda: None,
    on_ray: Callable[[], object] = lambda: None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[RunningService]:
    """The deployment, up and ready on a separate Ray.

    A download may take hours, so nothing times out while Serve says that something is still
    starting, unless `ready_s` sets a limit. Prometheus finds the metrics at `metrics_port` (None:
    at any). `check` is that of `own_ray`; from `on_ray` on an exception may end the start at any
    time. `tell` gets what a deployment without a place needs, and every minute what is still
    starting.

    Nothing that was started outlives the block, not even after an exception. Call
    `deploy.launch.environment.prepare` before anything imports ray.

    Raises:
        NotServing: a port is taken, GPUs are missing, a deployment failed, or it was not ready
            in time.
    """
    options = deployment.serve.http_options
    want_port(options.host, options.port, "--port, or http_options.port in the file")
    if metrics_port is not None:
        want_port(LOOPBACK, metrics_port, "--metrics-port")
    with ExitStack() as meanwhile:
        meanwhile.enter_context(answering(options.host or LOOPBACK, options.port))
        with own_ray(_processes(deployment.args), metrics_port, check) as node:
            if not deployment.serve.applications[0].deployments:  # which may ask for other GPUs
                _want_gpus(deployment.args.workers)
            on_ray()
            client = _start_serve(deployment)
            meanwhile.close()
            # As `serve run FILE` does it: the whole file counts, with its `deployments` overrides.
            client.deploy_apps(deployment.serve, _blocking=False)
            _wait(deployment, ready_s, tell)
            name = deployment.serve.applications[0].name
            yield RunningService(deployment.url, name, deployment.args.workers, node)


def _processes(args: Args) -> int:
    """Return how many of Ray's workers the service needs: none for a server's model, or Redis."""
    servers = sum(spec.url is not None for spec in args.workers.by_name().values())
    return PROCESSES - servers - (args.store.url != "memory")


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


def _want_gpus(workers: Workers) -> None:
    """Raise NotServing if Ray has fewer GPUs than the workers need together: it would wait."""
    import ray

    there = ray.cluster_resources().get("GPU", 0.0)
    shares = {
        name: [spec.gpu] * (spec.gpus * spec.replicas.min)
        for name, spec in workers.by_name().items()
        if spec.on_gpu
    }
    wanted = gpus_for([*chain(*shares.values())])
    if wanted > there:
        each = ", ".join(f"workers.{name} {sum(of):g}" for name, of in shares.items())
        shared = (
            there and len(shares) > 1 and all(one.gpus == 1 for one in workers.by_name().values())
        )
        share = ", or let the workers share one (gpu: 0.25)" if shared else ""
        raise NotServing(
            f"the file asks for {wanted} GPUs, and this machine has {there:g}: {each}; "
            f"write device: cpu{share}, or use a larger machine"
        )


def _wait(deployment: Deployment, ready_s: float | None, tell: Callable[[str], object]) -> None:
    from ray import serve

    told: set[str] = set()
    began = time.monotonic()
    starting_at = said_at = began  # when something was still starting, and when that was printed
    reason = "/ready does not answer"
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while True:
            with suppress(httpx.HTTPError):
                reply = client.get(f"{deployment.url}/ready")
                if reply.status_code == 200:
                    return
                reason = _refusal(reply)
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
            elif now - starting_at > SOON_S and reason not in told:
                told.add(reason)
                tell(f"Everything runs, but {reason}")
            elif now - starting_at > READY_S:
                raise NotServing(
                    f"everything has run for {READY_S:g} s, but {reason}; Ray's logs are in "
                    f"{logs()}"
                )
            if ready_s is not None and now - began > ready_s:
                still = f"still starting: {', '.join(starting)}; " if starting else ""
                raise NotServing(
                    f"not ready within {ready_s:g} s; {still}Ray's logs are in {logs()}"
                )
            if now - said_at > TOLD_S:
                said_at = now
                minutes, what = round((now - began) / 60), ", ".join(starting) or reason
                tell(f"Still starting after {minutes} min: {what} (logs: {logs()})")
            time.sleep(0.25)


def _refusal(reply: httpx.Response) -> str:
    """Return the message of a refusal by /ready."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"/ready answers {reply.status_code}"


def _missing(message: str) -> str | None:
    """Return what a replica lacks, by Serve's message; None if it lacks nothing."""
    found = re.search(r"each replica: (\{.*?\}), total resources available: (\{.*?\})", message)
    if found is None:
        return None
    needed, there = json.loads(found[1]), json.loads(found[2])
    short = any(size > there.get(name, 0) for name, size in needed.items())
    return f"{found[1]}, total resources available: {found[2]}" if short else None


def _gist(messages: list[str]) -> str:
    """The cause: the last line that names an error."""
    lines = [line.strip() for message in messages for line in message.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith("Error")]
    gist = (errors or lines or ["no reason was given"])[-1]
    return re.sub(rf"^{BatonError.__module__}\.\w+: ", "", gist)
