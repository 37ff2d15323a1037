"""The composition root: from a deployment file's `args` to a Ray Serve application.

    SmallWorker, LargeWorker   replicas of the two models (workers/replica); none if
                               a server is named instead, which the ingress calls itself
    Store                      with `store: memory`: the state that HTTP replicas share
    Orchestrator               the HTTP replicas: policies, and the OpenAI-compatible API

`serve run deploy/local.yaml` and `baton serve` both come here.
"""
# No `from __future__ import annotations`: Ray Serve reads the builder's annotation as a class.

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from deploy.service.config import Args
from deploy.service.direct import HttpListener, HttpLocation
from deploy.service.notes import notes
from deploy.service.pools import TIMEOUT_S, WorkerViews
from deploy.service.scaling import scaling
from deploy.service.stores import open_store, store_deployment
from deploy.service.worker_spec import WorkerSpec
from deploy.service.workers import connect_worker, load_worker
from deploy.telemetry.logs import join_serve
from deploy.telemetry.metrics import RayExporter, count_replicas, scrape, worker_exporter
from deploy.telemetry.tracing import open_spans
from orchestrator.errors import ConfigError
from orchestrator.http.app import create_app
from orchestrator.http.errors import HttpError
from orchestrator.http.planning import Catalog, Pools
from orchestrator.http.service import LiveRequests, Service
from orchestrator.http.settings import HttpSettings
from orchestrator.loop.actions import WorkerName
from policies import POLICIES
from workers.replica.broadcast import broadcast
from workers.replica.client import ReplicaWorker
from workers.replica.server import deployment

if TYPE_CHECKING:  # it needs torch, and only some deployments need it
    from workers.backend import LocalBackend
    from workers.worker import EngineWorker

log = logging.getLogger(__name__)

BESIDE = 1024  # requests at a replica beside those that have or await a place: probes, refusals
QUEUED = 128  # requests at a proxy that wait to be handed on


@serve.ingress()
class Orchestrator:
    """One HTTP replica, an ingress of Ray Serve."""

    def __init__(self, args: Args, small: Any, large: Any, store: Any) -> None:
        join_serve()
        args.check_host(_host())
        self._args = args
        pools: dict[WorkerName, Any] = {"small": small, "large": large}
        specs = args.workers.by_name()
        replicas = {
            name: ReplicaWorker(
                pool,
                retry_timeout_s=specs[name].patience_s,
                on_lost=partial(self._count_lost, name),
            )
            for name, pool in pools.items()
            if pool is not None
        }
        remote = {
            name: connect_worker(spec) for name, spec in specs.items() if spec.url is not None
        }
        workers: dict[WorkerName, Any] = {**replicas, **remote}
        views, http = WorkerViews(workers, shows=args.auth is None), args.orchestrator
        self._service = Service(
            Catalog(
                POLICIES,
                args.policy.default,
                args.policy.params,
                methods=args.workers.methods(),
                speculation=args.workers.speculation(),
                when_busy=args.policy.when_busy,
            ),
            Pools(workers, views.troubles, views.facts, args.sampling),
            HttpSettings(
                args.limits,
                http.reasoning_field,
                http.strict,
                http.cors_origins,
                proxy_adds_request_id=True,
                loopback=args.auth is None,
                trace_ttl_s=args.store.trace_ttl_s,
                prices=args.prices,
                remarks=args.workers.remarks(),
                notes=tuple(notes(args)),
            ),
            args.access(),
            open_store(args.store, store),
        )
        self._end_spans = None
        if args.tracing is not None:
            self._service.spans, self._end_spans = open_spans(args.tracing)
        count_replicas(self._service.registry, replicas)
        context = serve.get_replica_context()
        peers = serve.get_deployment_handle(context.deployment, context.app_name)
        self._service.scrape = partial(scrape, peers, replicas)
        self._service.hurry = partial(_answer_now, self._service.live, peers)
        self._exporter = RayExporter()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        args = self._args
        self._http = HttpListener(
            create_app(self._service), _most_requests(args), args.limits.deadline_s
        )
        return self._http

    async def location(self) -> HttpLocation:
        """Return where this replica takes requests from the proxies."""
        return await self._http.location()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load, from which Serve decides how many replicas to run."""
        return {"load": self._service.live.admission.load}

    async def check_health(self) -> None:
        """Export metrics and read keys again; Serve calls this every two seconds."""
        self._export()
        try:
            self._service.access = self._args.access()
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)

    async def series(self) -> tuple[str, list[Metric]]:
        """The name of this replica, and its metrics."""
        replica: str = serve.get_replica_context().replica_tag
        return replica, list(self._service.registry.collect())

    async def drain(self) -> int:
        """Take on no more requests; returns how many are being answered here."""
        return self._service.live.drain()

    async def cut(self) -> None:
        """End every answer of this replica now, each with an error that says why."""
        self._service.live.cut()

    async def answer_now(self, name: str, key: str | None) -> int:
        """End the thoughts of a key's requests of this name in this replica."""
        return self._service.live.answer_now(name, key)

    def _export(self) -> None:
        self._exporter.export(self._service.registry.collect())

    def _count_lost(self, name: WorkerName) -> None:
        self._service.metrics.lost.labels(name).inc()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it never started
            self._export()
            if self._end_spans is not None:
                self._end_spans()


async def _answer_now(
    live: LiveRequests, replicas: DeploymentHandle, name: str, key: str | None
) -> int:
    """End the thoughts of a key's requests of this name, whichever replica answers them.

    Raises:
        HttpError: 503, a replica did not answer, and no other has such a request.
    """
    here = live.answer_now(name, key)  # whatever becomes of the call to all
    answers = broadcast(replicas, "answer_now", name, key, timeout_s=TIMEOUT_S)
    counts = [count async for count in answers]
    heard = [count for count in counts if isinstance(count, int)]
    ended = max(sum(heard), here)
    if not ended and len(heard) < len(counts):
        message = "a replica, which may have this request, did not answer"
        raise HttpError(503, message, code="replica_silent")
    return ended


def build(args: Args) -> Application:
    """The application builder that deployment files name as `import_path`."""
    pools = {
        name: deployment(
            f"{name.capitalize()}Worker",
            partial(_load, spec),
            scaling=scaling(spec.replicas),
            nodes=spec.nodes,
            gpu=spec.gpu if spec.on_gpu else 0.0,
            gpus=spec.gpus if spec.on_gpu else 1,
            exporter=partial(worker_exporter, name),
        )
        for name, spec in args.workers.by_name().items()
        if spec.url is None
    }
    for spec in args.workers.by_name().values():
        spec.key()  # a missing one is an error here, not a replica that does not start
    args.store.password()
    store = store_deployment() if args.store.url == "memory" else None
    orchestrator = serve.deployment(
        Orchestrator,
        name="Orchestrator",
        **scaling(args.orchestrator.replicas),
        # Admission is ours, with an OpenAI error; Serve's own limit answers in plain text and is
        # the outer fuse only: once it has blown, Serve's router hands on four requests a second.
        max_ongoing_requests=_most_requests(args),
        max_queued_requests=QUEUED,
        # An update lets running requests finish (Serve's 20 s would cut a long thought).
        graceful_shutdown_timeout_s=args.limits.deadline_s,
        graceful_shutdown_wait_loop_s=0.1,
        # An update starts new replicas first: they need no GPU, and no request has to wait.
        max_surge_percent=100,
        health_check_period_s=2,  # also how often metrics are exported
        health_check_timeout_s=30,
        max_constructor_retry_count=2,
        ray_actor_options={"num_cpus": 0.2, "label_selector": args.orchestrator.nodes},
    )
    return orchestrator.bind(args, pools.get("small"), pools.get("large"), store)


def _most_requests(args: Args) -> int:
    """Return how many requests a replica takes at once from Serve, and from each proxy."""
    return 2 * args.limits.concurrent + BESIDE


def _load(spec: WorkerSpec) -> "EngineWorker[LocalBackend]":
    """The worker of a replica, in the replica's process."""
    join_serve()
    return load_worker(spec)


def _host() -> str | None:
    """The address that Serve's HTTP proxies listen on."""
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    host: str | None = client.http_config.host if client is not None else None
    return host
