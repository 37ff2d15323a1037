"""What KubeRay's operator refuses of a RayService that its schema lets through.

After `ray-operator/controllers/ray/utils/validation.go` of KubeRay 1.7, whose operator says these
things only once a manifest is applied. Fields of features that are off by default get a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from deploy.checking.located_yaml import Finding, at, finding

CLUSTER = ("spec", "rayClusterConfig")
HEAD = (*CLUSTER, "headGroupSpec")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
_LONGEST_NAME = 47  # room for what the operator appends to pods and services
_GATED = {
    "networkPolicy": "RayClusterNetworkPolicy",
    "tlsOptions": "RayClusterMTLS",
    "historyServerOptions": "RayClusterHistoryServer",
}
_DEAD = ("serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold")
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
_V2 = "RAY_enable_autoscaler_v2"

Path = tuple[str | int, ...]


def check(service: Any) -> list[Finding]:
    """The operator's semantic rules on a RayService that has the right shape."""
    return [finding(service, path, message, level) for path, message, level in _rules(service)]


def groups(service: Any) -> list[tuple[Path, Any]]:
    """The worker groups, each with its path."""
    path = (*CLUSTER, "workerGroupSpecs")
    return [((*path, index), group) for index, group in enumerate(at(service, path, []))]


def environment(container: Any) -> dict[str, Any]:
    """The variables of a container: name -> entry."""
    return {str(entry.get("name")): entry for entry in at(container, ("env",), [])}


def version(text: Any) -> tuple[int, ...]:
    """`2.60.0` as numbers; empty where it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", str(text or ""))
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def _rules(service: Any) -> Iterator[tuple[Path, str, str]]:
    for rule in (_names, _pods, _scaling, _storage, _security, _upgrade):
        for path, message, *level in rule(service):
            yield path, message, level[0] if level else "error"


_Rule = Iterator[tuple[Any, ...]]


def _names(service: Any) -> _Rule:
    if service.get("apiVersion") != "ray.io/v1":
        yield ("apiVersion",), "must be ray.io/v1"
    name = str(at(service, ("metadata", "name"), ""))
    if not _DNS_LABEL.fullmatch(name):
        yield ("metadata", "name"), f"{name!r} is no DNS-1035 label (a-z, 0-9, -)"
    elif len(name) > _LONGEST_NAME:
        yield ("metadata", "name"), f"has {len(name)} characters, {_LONGEST_NAME} are allowed"
    for field in _DEAD:
        if field in at(service, ("spec",), {}):
            yield ("spec", field), "is read by no operator any more: leave it out"
    if at(service, (*HEAD, "headService", "metadata", "name")):
        yield (*HEAD, "headService", "metadata", "name"), "must not be set"
    seen: set[Any] = set()
    for path, group in groups(service):
        if group.get("groupName") in seen:
            yield (*path, "groupName"), f"{group['groupName']!r} is another group's name"
        seen.add(group.get("groupName"))


def _pods(service: Any) -> _Rule:
    for path, group in [(HEAD, at(service, HEAD, {})), *groups(service)]:
        if not at(group, ("template", "spec", "containers"), []):
            yield (*path, "template", "spec", "containers"), "needs at least one container"
        params = at(group, ("rayStartParams",), {})
        counted = [
            key for key in ("num-cpus", "num-gpus", "memory", "resources") if params.get(key)
        ]
        if counted and group.get("resources"):
            yield (*path, "resources"), f"stand in rayStartParams.{counted[0]} too; use one of them"
        if "labels" in params:
            yield (*path, "rayStartParams", "labels"), "is not supported: use the group's labels"
        for key, value in at(group, ("labels",), {}).items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
                yield (*path, "labels", key), f"{key}={value} is no Kubernetes label"


def _scaling(service: Any) -> _Rule:
    cluster = at(service, CLUSTER, {})
    scales = bool(cluster.get("enableInTreeAutoscaling"))
    second = scales and at(cluster, ("autoscalerOptions", "version")) == "v2"
    head_env = environment(at(service, (*HEAD, "template", "spec", "containers", 0), {}))
    by_env = str(at(head_env, (_V2, "value"), "")) in ("1", "true")
    options: Path = (*CLUSTER, "autoscalerOptions")
    if _V2 in head_env and at(cluster, ("autoscalerOptions", "version")):
        yield (*options, "version"), f"the head's {_V2} says it too; leave that out"
    if by_env and not scales:
        yield (*CLUSTER, "enableInTreeAutoscaling"), f"must be true for {_V2}"
    if (at(cluster, ("autoscalerOptions", "idleTimeoutSeconds"), 0)) < 0:
        yield (*options, "idleTimeoutSeconds"), "must not be negative"
    if "KUBERAY_GEN_AUTOSCALER_START_CMD" in environment(at(cluster, ("autoscalerOptions",), {})):
        yield (*options, "env"), "KUBERAY_GEN_AUTOSCALER_START_CMD is the operator's own"
    policies = [(HEAD, at(service, HEAD, {})), *groups(service)]
    for path, group in policies:
        restart = at(group, ("template", "spec", "restartPolicy"), "Never")
        if second and restart != "Never":
            location = (*path, "template", "spec", "restartPolicy")
            yield location, f"{restart}: must be Never or unset with autoscaler v2"
    for path, group in groups(service):
        low, high, now = (group.get(key) for key in ("minReplicas", "maxReplicas", "replicas"))
        if not scales and (low is None or high is None):
            yield path, "needs minReplicas and maxReplicas where autoscaling is off"
        for key, value in (("minReplicas", low), ("maxReplicas", high)):
            if value is not None and value < 0:
                yield (*path, key), f"{value}: must not be negative"
        if low is not None and high is not None and low > high:
            yield (*path, "minReplicas"), f"{low} is more than maxReplicas {high}"
        elif now is not None and not (low or 0) <= now <= (now if high is None else high):
            yield (*path, "replicas"), f"{now} is not between minReplicas and maxReplicas"
        if scales and group.get("suspend"):
            yield (*path, "suspend"), "a group cannot be suspended with autoscaling"
        if group.get("idleTimeoutSeconds") is not None and not (second or by_env):
            yield (*path, "idleTimeoutSeconds"), "needs autoscalerOptions.version v2"
        if (group.get("idleTimeoutSeconds") or 0) < 0:
            yield (*path, "idleTimeoutSeconds"), "must not be negative"
        if group.get("priority"):
            if not (second or by_env):
                yield (*path, "priority"), "needs autoscalerOptions.version v2"
            if version(cluster.get("rayVersion")) < (2, 56, 0):
                yield (*path, "priority"), "needs rayVersion 2.56.0 or later"


def _storage(service: Any) -> _Rule:
    notes = at(service, ("metadata", "annotations"), {})
    options = at(service, (*CLUSTER, "gcsFaultToleranceOptions"))
    path: Path = (*CLUSTER, "gcsFaultToleranceOptions")
    container: Path = (*HEAD, "template", "spec", "containers", 0)
    env = environment(at(service, container, {}))
    params = at(service, (*HEAD, "rayStartParams"), {})
    if params.get("redis-username"):
        yield (*HEAD, "rayStartParams", "redis-username"), "say it in gcsFaultToleranceOptions"
    if "REDIS_USERNAME" in env:
        yield (*container, "env"), "REDIS_USERNAME: say it in gcsFaultToleranceOptions"
    if options is None:
        if "RAY_REDIS_ADDRESS" in env and notes.get("ray.io/ft-enabled") != "true":
            yield (*container, "env"), "RAY_REDIS_ADDRESS needs gcsFaultToleranceOptions"
        return
    for old in ("ray.io/ft-enabled", "ray.io/external-storage-namespace"):
        if notes.get(old):
            message = "conflicts with gcsFaultToleranceOptions, which replaced it"
            yield ("metadata", "annotations", old), message
    if params.get("redis-password"):
        message = "conflicts with gcsFaultToleranceOptions.redisPassword"
        yield (*HEAD, "rayStartParams", "redis-password"), message
    for name in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
        if name in env:
            yield (*container, "env"), f"{name}: conflicts with gcsFaultToleranceOptions"
    if options.get("backend", "redis") == "redis":
        if "storage" in options:
            yield (*path, "storage"), "goes with backend rocksdb only"
        if not options.get("redisAddress"):
            yield (*path, "redisAddress"), "is missing"
        return
    yield (*path, "backend"), "needs the feature gate GCSFaultToleranceEmbeddedStorage", "note"
    for key in ("redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace"):
        if key in options:
            yield (*path, key), "goes with backend redis only"


def _security(service: Any) -> _Rule:
    cluster = at(service, CLUSTER, {})
    options = cluster.get("authOptions") or {}
    if options.get("enableK8sTokenAuth"):
        message = "is not supported for a RayService"
        yield (*CLUSTER, "authOptions", "enableK8sTokenAuth"), message
    ray = version(cluster.get("rayVersion"))
    if options.get("mode", "token" if options else "disabled") == "token":
        if not ray:
            yield (*CLUSTER, "rayVersion"), "is needed for authOptions.mode token"
        elif ray < (2, 52, 0):
            message = f"{cluster['rayVersion']}: authOptions.mode token needs 2.52.0 or later"
            yield (*CLUSTER, "rayVersion"), message
    for field, gate in _GATED.items():
        if field in cluster:
            yield (*CLUSTER, field), f"needs the operator's feature gate {gate}", "note"


def _upgrade(service: Any) -> _Rule:
    if at(service, (*CLUSTER, "upgradeStrategy", "type")):
        yield (*CLUSTER, "upgradeStrategy"), "belongs under spec, with a RayService's types"
    path: Path = ("spec", "upgradeStrategy")
    strategy = at(service, path, {})
    kind = strategy.get("type", "NewCluster")
    options = strategy.get("clusterUpgradeOptions")
    if kind not in _UPGRADES:
        yield (*path, "type"), f"{kind!r}: must be one of {', '.join(_UPGRADES)}"
    if kind != "NewClusterWithIncrementalUpgrade":
        if options is not None:
            message = "is read with type NewClusterWithIncrementalUpgrade only"
            yield (*path, "clusterUpgradeOptions"), message
        return
    if not at(service, (*CLUSTER, "enableInTreeAutoscaling")):
        yield (*CLUSTER, "enableInTreeAutoscaling"), "must be true for incremental upgrades"
    path = (*path, "clusterUpgradeOptions")
    if options is None:
        yield path, "is missing"
        return
    surge, step = options.get("maxSurgePercent", 100), options.get("stepSizePercent")
    if not 0 <= surge <= 100:
        yield (*path, "maxSurgePercent"), f"{surge}: must be between 0 and 100"
    if step is None or not 0 <= step <= 100:
        yield (*path, "stepSizePercent"), f"{step}: must be between 0 and 100"
    elif step > surge:
        yield (*path, "stepSizePercent"), f"{step} is more than maxSurgePercent {surge}"
    if (options.get("intervalSeconds") or 0) <= 0:
        yield (*path, "intervalSeconds"), "must be greater than 0"
    if not options.get("gatewayClassName"):
        yield (*path, "gatewayClassName"), "is missing"
