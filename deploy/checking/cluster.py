"""A RayService against the deployment inside it: versions, GPUs, replicas, time to finish."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import Any

from deploy.checking import deployment as inner
from deploy.checking.documents import Document, Finding, Path, at, read
from deploy.checking.rayservice import CLUSTER, HEAD, environment, groups, version
from deploy.launch.deployment_file import Deployment
from deploy.service.scaling import gpus_for
from orchestrator.errors import ConfigError

GPU = "nvidia.com/gpu"
_SERVED = ("spec", "serveConfigV2")
_GRACE_S = 30  # Kubernetes' default
_DELAY_S = 60  # KubeRay's default
_RAY_IN_TAG = re.compile(r"ray[-:]?v?(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """Replicas of one deployment: the labels of their nodes, their largest number, and for each the
    share `gpu` of each of its `gpus` GPUs."""

    name: str
    field: str
    nodes: Mapping[str, str]
    most: int
    gpu: float = 0.0
    gpus: int = 1


def check(service: Document) -> list[Finding]:
    """Check the embedded deployment, and whether the cluster fits it."""
    findings = list(_versions(service)) + list(_control_plane(service))
    text = service.at(_SERVED)
    if not text:
        return [*findings, service.finding(_SERVED, "is missing: nothing would be served")]
    location = service.location(_SERVED)
    location = location._replace(line=service.texts.get(_SERVED, location.line))
    try:
        documents = read(text, location)
    except ConfigError as error:
        line, message = re.match(r".*?:(\d+): (.*)", str(error)).groups()  # type: ignore[union-attr]
        wrong = Finding(location._replace(line=int(line)), "spec.serveConfigV2", message)
        return [*findings, wrong]
    if not documents:
        return [*findings, service.finding(_SERVED, "is empty: nothing would be served")]
    served = documents[0]
    checked = inner.check(served)
    findings += checked.findings
    if checked.deployment is not None:
        findings += _together(service, served, checked.deployment)
    return findings


def _versions(service: Document) -> Iterator[Finding]:
    path: Path = (*CLUSTER, "rayVersion")
    ray = service.at(path)
    if ray is None:
        yield service.finding(path, "is missing")
    elif version(ray) != version(installed("ray")):
        yield service.finding(path, f"{ray}: the image is built with Ray {installed('ray')}")
    for path, _, container in _containers(service):
        image = str(container.get("image", ""))
        name, colon, tag = image.partition("@")[0].rpartition(":")
        where = (*path, "image")
        if "@sha256:" not in image and (not colon or "/" in tag or tag == "latest"):
            yield service.finding(where, f"{image!r} is not pinned: name a tag or a digest")
            continue
        found = _RAY_IN_TAG.search(tag) or (
            re.match(r"v?(\d+\.\d+\.\d+)", tag) if name.endswith(("/ray", "/ray-ml")) else None
        )
        if found and ray is not None and version(found[1]) != version(ray):
            yield service.finding(where, f"{image} has Ray {found[1]}, rayVersion is {ray}")


def _control_plane(service: Document) -> Iterator[Finding]:
    """Check access to Ray's ports, by which a client can run code."""
    options = service.at((*CLUSTER, "authOptions"), {})
    if options.get("mode", "token" if options else "disabled") != "token":
        message = "must be token: Ray runs whatever is sent to its ports"
        yield service.finding((*CLUSTER, "authOptions", "mode"), message)
    if groups(service.data) and service.at((*HEAD, "rayStartParams", "num-cpus")) != "0":
        message = 'must be "0": replicas on the head could take the control plane down with them'
        yield service.finding((*HEAD, "rayStartParams", "num-cpus"), message)


def _together(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    yield from _addresses(service, served, deployment)
    yield from _times(service, served, deployment)
    yield from _keys(service, served, deployment)
    yield from _room(service, served, deployment)
    gcs = str(service.at((*CLUSTER, "gcsFaultToleranceOptions", "redisAddress"), ""))
    if gcs and _host(gcs) == _host(deployment.args.store.url):
        message = f"{_host(gcs)} holds the cluster's state too: give policies another Redis"
        path: Path = (*inner.ARGS, "store", "url")
        yield served.finding(path if served.at(path) else path[:-1], message)


def _addresses(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    options = deployment.serve.http_options
    if options.host not in ("0.0.0.0", "::"):  # noqa: S104
        message = f"{options.host}: other pods cannot reach it; write 0.0.0.0"
        yield served.finding(("http_options", "host"), message)
    location = str(getattr(deployment.serve.proxy_location, "value", None))
    if groups(service.data) and location != "EveryNode":
        message = f"{location}: a worker pod is ready only with a proxy on it; write EveryNode"
        yield served.finding(("proxy_location",), message)
    for path, _, container in _containers(service):
        for index, port in enumerate(at(container, ("ports",), [])):
            if port.get("name") == "serve" and port.get("containerPort") != options.port:
                message = f"{port.get('containerPort')}: http_options.port is {options.port}"
                yield service.finding((*path, "ports", index, "containerPort"), message)


def _times(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Drain ≤ deletion delay ≤ grace, and drain ≤ preStop ≤ grace: an answer that runs may end
    before its pod does."""
    drain = deployment.args.limits.deadline_s
    for index, override in enumerate(deployment.serve.applications[0].deployments):
        timeout = override.graceful_shutdown_timeout_s
        if override.name == "Orchestrator" and isinstance(timeout, (int, float)):
            if timeout < drain:
                message = f"{timeout:g} s would cut answers that may take {drain:g} s (deadline_s)"
                override_path = ("applications", 0, "deployments", index)
                yield served.finding((*override_path, "graceful_shutdown_timeout_s"), message)
            drain = max(drain, timeout)
    field: Path = ("spec", "rayClusterDeletionDelaySeconds")
    delay = service.at(field, _DELAY_S)
    if delay < drain:
        message = (
            f"{delay} s are less than the {drain:g} s that an answer may take (limits.deadline_s)"
        )
        yield service.finding(field, message)
    for path, group in groups(service.data):
        where = (*path, "template", "spec", "terminationGracePeriodSeconds")
        grace = at(group, where[len(path) :], _GRACE_S)
        if grace < delay:
            message = f"{grace} s are less than rayClusterDeletionDelaySeconds, {delay} s"
            yield service.finding(where, message)
    yield from _stops(service, drain)


def _stops(service: Document, drain: float) -> Iterator[Finding]:
    """Check the seconds for which drain.sh waits before a pod gets its stop signal."""
    for path, group, container in _containers(service):
        where: Path = ("lifecycle", "preStop", "exec", "command")
        command = " ".join(map(str, at(container, where, [])))
        grace = at(group, ("template", "spec", "terminationGracePeriodSeconds"), _GRACE_S)
        found = re.search(r"drain\.sh\s*(\d*)", command)
        if found is not None and not drain <= int(found[1] or 0) <= grace:
            message = f"drain.sh {found[1]}: write the seconds for which it waits, at least the "
            message += f"{drain:g} s that an answer may take (limits.deadline_s), at most "
            message += f"terminationGracePeriodSeconds, {grace} s"
            yield service.finding((*path, *where), message)


def _keys(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Check that the variables of the deployment are set in the pods that read them.

    The orchestrator reads all of them. The head, with Serve's controller, builds the application
    and reads those of workers, store and collector.
    """
    args = deployment.args
    build: dict[Path, str | None] = {
        ("workers", name, "api_key_env"): spec.api_key_env
        for name, spec in args.workers.by_name().items()
    }
    build["store", "password_env"] = args.store.password_env
    if args.tracing is not None:
        build["tracing", "headers_env"] = args.tracing.headers_env
    every = dict(build)
    if args.auth is not None and args.auth != "none":
        for key in ("api_keys_env", "admin_key_env", "observer_keys_env"):
            every["auth", key] = getattr(args.auth, key)
    readers = [(group, every) for _, group in _matching(service, args.orchestrator.nodes)]
    for group, wanted in [(service.at(HEAD, {}), build), *readers]:
        container = at(group, ("template", "spec", "containers", 0), {})
        if "envFrom" in container:
            continue  # its variables are unknown here
        for where, name in wanted.items():
            if name is not None and name not in environment(container):
                pods = f"pods of group {group['groupName']}" if "groupName" in group else "head"
                message = f"{name} is not set in the {pods}"
                yield served.finding((*inner.ARGS, *where), message)


def _room(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Check that every replica has a place: a group with its labels, and its share of a GPU."""
    pools = _pools(deployment)
    beside: dict[str, list[DeployedPool]] = {}  # pools that share groups, by their names
    capacity: dict[str, float] = {}
    for pool in pools:
        found = _matching(service, pool.nodes)
        path: Path = (*inner.ARGS, *pool.field.split("."))
        if not found:
            labels = ", ".join(f"{key}={value}" for key, value in pool.nodes.items())
            message = f"no worker group has the labels {labels}" if labels else "no worker group"
            yield served.finding((*path, "nodes"), message)
        elif pool.gpu:
            having = [(location, group) for location, group in found if gpus(group)]
            if not having:
                takes = f"{pool.gpus} GPUs" if pool.gpus > 1 else f"{pool.gpu:g} of a GPU"
                message = f"takes {takes}, and {_named(found)} has no {GPU}"
                yield served.finding((*path, "gpu"), message)
                continue
            capacity[_named(having)] = sum(gpus(group) * _most(group) for _, group in having)
            beside.setdefault(_named(having), []).append(pool)
    for names, sharing in beside.items():
        wanted = gpus_for([pool.gpu for pool in sharing for _ in range(pool.most * pool.gpus)])
        if wanted > capacity[names]:
            message = " + ".join(
                f"{pool.name} {pool.most} × {pool.gpu * pool.gpus:g}" for pool in sharing
            )
            message += f" take {wanted} GPUs, {names} has {capacity[names]:g} at maxReplicas"
            path = (*inner.ARGS, *sharing[-1].field.split("."), "replicas")
            yield served.finding(path, message)
    yield from _spread(service, served, deployment, pools)


def _spread(
    service: Document, served: Document, deployment: Deployment, pools: list[DeployedPool]
) -> Iterator[Finding]:
    """Check that there are enough nodes for `max_replicas_per_node`, with one more replica of the
    orchestrator: an update starts a new one before it stops an old one."""
    by_name = {pool.name: pool for pool in pools}
    for index, override in enumerate(deployment.serve.applications[0].deployments):
        per_node, pool = override.max_replicas_per_node, by_name.get(override.name)
        if pool is None or not isinstance(per_node, int):
            continue
        nodes = sum(_most(group) for _, group in _matching(service, pool.nodes))
        spare = override.name == "Orchestrator" and override.max_surge_percent != 0
        if pool.most + spare > per_node * nodes:
            need = math.ceil((pool.most + spare) / per_node)
            more = " and a new one in an update" if spare else ""
            message = f"{pool.most} replicas{more} at {per_node} a node need {need} nodes, "
            message += f"there are {nodes:g} at maxReplicas"
            path = ("applications", 0, "deployments", index, "max_replicas_per_node")
            yield served.finding(path, message)


def gpus(group: Any) -> int:
    """Return the GPUs of one pod of a group, as Ray will count them."""
    count = at(group, ("rayStartParams", "num-gpus")) or at(group, ("resources", "GPU"))
    limits = (
        at(container, ("resources", "limits", GPU), 0)
        for container in at(group, ("template", "spec", "containers"), [])[:1]
    )
    return int(count) if count is not None else sum(int(limit) for limit in limits)


def _most(group: Any) -> float:
    """Return the largest number of pods of a group; inf if it has no maximum."""
    return float(group.get("maxReplicas", math.inf) * group.get("numOfHosts", 1))


def _pools(deployment: Deployment) -> list[DeployedPool]:
    args = deployment.args
    pools = [
        DeployedPool(
            f"{name.capitalize()}Worker",
            f"workers.{name}",
            spec.nodes,
            spec.replicas.max,
            spec.gpu if spec.on_gpu else 0.0,
            spec.gpus,
        )
        for name, spec in args.workers.by_name().items()
        if spec.url is None
    ]
    ours = args.orchestrator
    return [*pools, DeployedPool("Orchestrator", "orchestrator", ours.nodes, ours.replicas.max)]


def _matching(service: Document, nodes: Mapping[str, str]) -> list[tuple[Path, Any]]:
    """Return the worker groups whose nodes have all these labels."""
    wanted = nodes.items()
    return [
        (path, group)
        for path, group in groups(service.data)
        if all(at(group, ("labels", key)) == value for key, value in wanted)
    ]


def _named(found: list[tuple[Path, Any]]) -> str:
    return " or ".join(f"group {group.get('groupName')}" for _, group in found)


def _host(address: str) -> str:
    """Return host and port of `redis://user:password@host:port/0`, or of a plain `host:port`."""
    rest = address.partition("://")[2] or address
    host = rest.rpartition("@")[2].partition("/")[0]
    name, _, port = host.partition(":")
    return f"{name}:{port or 6379}"


def _containers(service: Document) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every container, after its path and its group."""
    for path, group in [(HEAD, service.at(HEAD, {})), *groups(service.data)]:
        for index, container in enumerate(at(group, ("template", "spec", "containers"), [])):
            yield (*path, "template", "spec", "containers", index), group, container
