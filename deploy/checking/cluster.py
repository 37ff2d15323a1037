"""A RayService against the deployment inside it: versions, GPUs, replicas, time to finish."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import Any

from deploy.checking.deployment import check as check_deployment
from deploy.checking.deployment import variables
from deploy.checking.documents import Document, Finding, Path, at, read
from deploy.launch.deployment_file import APPLICATION, ARGS, Deployment
from deploy.service.scaling import gpus_for
from orchestrator.errors import ConfigError

GPU = "nvidia.com/gpu"
_CLUSTER = ("spec", "rayClusterConfig")
_HEAD = (*_CLUSTER, "headGroupSpec")
_POD = ("template", "spec")
_SERVED = ("spec", "serveConfigV2")
_GRACE = (*_POD, "terminationGracePeriodSeconds")
_GRACE_S = 30  # Kubernetes' default
_DELAY_S = 60  # KubeRay's default
_RAY_IN_IMAGE = re.compile(r"\bray(?:-ml)?[-:]?v?(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """Replicas of one deployment: the labels of their nodes, their largest number, and for each the
    share `gpu` of each of its `gpus` GPUs."""

    name: str
    path: Path
    nodes: Mapping[str, str]
    most: int
    gpu: float = 0.0
    gpus: int = 1


def check(service: Document) -> list[Finding]:
    """Check the embedded deployment, and whether the cluster fits it."""
    findings = [*_versions(service)]
    options = service.at((*_CLUSTER, "authOptions"), {})
    if options.get("mode", "token" if options else "disabled") != "token":
        message = "must be token: Ray runs whatever is sent to its ports"
        findings.append(service.finding((*_CLUSTER, "authOptions", "mode"), message))
    number = (*_HEAD, "rayStartParams", "num-cpus")
    if groups(service.data) and service.at(number) != "0":
        message = 'must be "0": replicas on the head could take the control plane down with them'
        findings.append(service.finding(number, message))
    place = service.finding(_SERVED, "is missing or empty: nothing would be served")
    try:
        documents = read(service.at(_SERVED, ""), service.file, place.line + 1)  # after the key
    except ConfigError as error:
        line, message = re.match(r".*?:(\d+): (.*)", str(error)).groups()  # type: ignore[union-attr]
        return [*findings, Finding(service.file, int(line), place.field, message)]
    if not documents:
        return [*findings, place]
    found, deployment = check_deployment(documents[0])
    findings += found
    if deployment is not None:
        findings += _addresses(service, documents[0], deployment)
        findings += _times(service, documents[0], deployment)
        findings += _unset(service, documents[0], deployment)
        findings += _room(service, documents[0], deployment)
    return findings


def groups(manifest: Any) -> list[tuple[Path, Any]]:
    """Return the worker groups, each with its path."""
    path = (*_CLUSTER, "workerGroupSpecs")
    return [((*path, index), group) for index, group in enumerate(at(manifest, path, []))]


def _versions(service: Document) -> Iterator[Finding]:
    path: Path = (*_CLUSTER, "rayVersion")
    if (ray := service.at(path)) is None:
        yield service.finding(path, "is missing")
        return
    if ray != installed("ray"):
        yield service.finding(path, f"{ray}: the image is built with Ray {installed('ray')}")
    for where, _, container in _containers(service):
        image = str(container.get("image", ""))
        found = _RAY_IN_IMAGE.search(image)
        if found and found[1] != ray:
            message = f"{image} has Ray {found[1]}, rayVersion is {ray}"
            yield service.finding((*where, "image"), message)


def _addresses(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    options = deployment.serve.http_options
    if options.host not in ("0.0.0.0", "::"):  # noqa: S104
        message = f"{options.host}: other pods cannot reach it; write 0.0.0.0"
        yield served.finding(("http_options", "host"), message)
    location = str(getattr(deployment.serve.proxy_location, "value", None))
    if groups(service.data) and location != "EveryNode":
        message = f"{location}: a worker pod is ready only with a proxy on it; write EveryNode"
        yield served.finding(("proxy_location",), message)
    gcs = str(service.at((*_CLUSTER, "gcsFaultToleranceOptions", "redisAddress"), ""))
    if gcs and _host(gcs) == _host(deployment.args.store.url):
        message = f"{_host(gcs)} holds the cluster's state too: give policies another Redis"
        yield served.finding((*ARGS, "store", "url"), message)


def _times(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Check that an answer that runs may end before its pod does.

    Drain ≤ deletion delay ≤ grace, and drain ≤ the seconds of drain.sh in preStop ≤ grace.
    """
    drain = deployment.args.limits.deadline_s
    for index, override in enumerate(deployment.serve.applications[0].deployments):
        timeout = override.graceful_shutdown_timeout_s
        if override.name == "Orchestrator" and isinstance(timeout, int | float):
            if timeout < drain:
                path: Path = (*APPLICATION, "deployments", index, "graceful_shutdown_timeout_s")
                message = f"{timeout:g} s would cut answers that may take {drain:g} s (deadline_s)"
                yield served.finding(path, message)
            drain = max(drain, timeout)
    field = ("spec", "rayClusterDeletionDelaySeconds")
    answers = f"the {drain:g} s that an answer may take (limits.deadline_s)"
    delay = service.at(field, _DELAY_S)
    if delay < drain:
        yield service.finding(field, f"{delay} s are less than {answers}")
    for path, group in groups(service.data):
        if (grace := at(group, _GRACE, _GRACE_S)) < delay:
            message = f"{grace} s are less than rayClusterDeletionDelaySeconds, {delay} s"
            yield service.finding((*path, *_GRACE), message)
    for path, group, container in _containers(service):
        where: Path = ("lifecycle", "preStop", "exec", "command")
        found = re.search(r"drain\.sh\s*(\d*)", " ".join(map(str, at(container, where, []))))
        grace = at(group, _GRACE, _GRACE_S)
        if found is not None and not drain <= int(found[1] or 0) <= grace:
            message = f"drain.sh {found[1]}: write the seconds for which it waits, at least "
            message += f"{answers}, at most terminationGracePeriodSeconds, {grace} s"
            yield service.finding((*path, *where), message)


def _unset(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Check that the variables of the deployment are set in the pods that read them.

    The orchestrator reads all of them, the head, which builds the application, all but the keys.
    """
    nodes = deployment.args.orchestrator.nodes
    pods = [(f"pods of group {one.get('groupName')}", one) for _, one in _matching(service, nodes)]
    for named, group in [("head", service.at(_HEAD, {})), *pods]:
        container = at(group, (*_POD, "containers", 0), {})
        names = {entry.get("name") for entry in at(container, ("env",), [])}
        for path, name in variables(deployment.args):
            read_here = named != "head" or path[0] != "auth"
            if read_here and name not in names and "envFrom" not in container:
                yield served.finding((*ARGS, *path), f"{name} is not set in the {named}")


def _room(service: Document, served: Document, deployment: Deployment) -> Iterator[Finding]:
    """Check that every replica has a place: a group with its labels, and its share of a GPU."""
    pools = _pools(deployment)
    sharing: dict[str, list[DeployedPool]] = {}  # pools, by the names of the groups they share
    capacity: dict[str, float] = {}
    for pool in pools:
        found = [group for _, group in _matching(service, pool.nodes)]
        having = [group for group in found if _gpus(group)]
        named = _named(having)
        if not found:
            labels = ", ".join(f"{key}={value}" for key, value in pool.nodes.items())
            message = f"no worker group has the labels {labels}" if labels else "no worker group"
            yield served.finding((*pool.path, "nodes"), message)
        elif pool.gpu and not having:
            takes = f"{pool.gpus} GPUs" if pool.gpus > 1 else f"{pool.gpu:g} of a GPU"
            message = f"takes {takes}, and {_named(found)} has no {GPU}"
            yield served.finding((*pool.path, "gpu"), message)
        elif pool.gpu:
            capacity[named] = sum(_gpus(group) * _most(group) for group in having)
            sharing.setdefault(named, []).append(pool)
    for named, beside in sharing.items():
        wanted = gpus_for([pool.gpu for pool in beside for _ in range(pool.most * pool.gpus)])
        if wanted > capacity[named]:
            takes = " + ".join(f"{one.name} {one.most} × {one.gpu * one.gpus:g}" for one in beside)
            message = f"{takes} take {wanted} GPUs, {named} has {capacity[named]:g} at maxReplicas"
            yield served.finding((*beside[-1].path, "replicas"), message)
    by_name = {pool.name: pool for pool in pools}
    for index, override in enumerate(deployment.serve.applications[0].deployments):
        per_node, known = override.max_replicas_per_node, by_name.get(str(override.name))
        if known is None or not isinstance(per_node, int):
            continue
        # An update starts a new orchestrator before it stops an old one.
        spare = override.name == "Orchestrator" and override.max_surge_percent != 0
        nodes = sum(_most(group) for _, group in _matching(service, known.nodes))
        need = math.ceil((known.most + spare) / per_node)
        if need > nodes:
            more = " and a new one in an update" if spare else ""
            message = f"{known.most} replicas{more} at {per_node} a node need {need} nodes, "
            message += f"there are {nodes:g} at maxReplicas"
            path = (*APPLICATION, "deployments", index, "max_replicas_per_node")
            yield served.finding(path, message)


def _pools(deployment: Deployment) -> list[DeployedPool]:
    orchestrator = deployment.args.orchestrator
    found = [
        DeployedPool(
            f"{name.capitalize()}Worker",
            (*ARGS, "workers", name),
            spec.nodes,
            spec.replicas.max,
            spec.gpu if spec.on_gpu else 0.0,
            spec.gpus,
        )
        for name, spec in deployment.args.workers.by_name().items()
        if spec.url is None
    ]
    path, most = (*ARGS, "orchestrator"), orchestrator.replicas.max
    return [*found, DeployedPool("Orchestrator", path, orchestrator.nodes, most)]


def _matching(service: Document, nodes: Mapping[str, str]) -> list[tuple[Path, Any]]:
    """Return the worker groups whose nodes have all these labels."""
    return [
        (path, group)
        for path, group in groups(service.data)
        if nodes.items() <= at(group, ("labels",), {}).items()
    ]


def _containers(service: Document) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every container, after its path and its group."""
    for path, group in [(_HEAD, service.at(_HEAD, {})), *groups(service.data)]:
        for index, container in enumerate(at(group, (*_POD, "containers"), [])):
            yield (*path, *_POD, "containers", index), group, container


def _gpus(group: Any) -> int:
    """Return the GPUs of one pod of a group, as Ray will count them."""
    count = at(group, ("rayStartParams", "num-gpus")) or at(group, ("resources", "GPU"))
    limit = at(group, (*_POD, "containers", 0, "resources", "limits", GPU), 0)
    return int(limit if count is None else count)


def _most(group: Any) -> float:
    """Return the largest number of pods of a group; inf if it has no maximum."""
    return float(group.get("maxReplicas", math.inf) * group.get("numOfHosts", 1))


def _named(found: list[Any]) -> str:
    return " or ".join(f"group {group.get('groupName')}" for group in found)


def _host(address: str) -> str:
    """Return host and port of `redis://user:password@host:port/0`, or of a plain `host:port`."""
    host = re.sub(r"^(\w+://)?([^@/]*@)?|/.*$", "", address)
    return host if ":" in host else f"{host}:6379"
