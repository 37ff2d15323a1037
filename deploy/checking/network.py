"""NetworkPolicies against the deployment they guard: they must allow the addresses it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from deploy.checking import deployment as inner
from deploy.checking.documents import Document, Finding, Path, at
from deploy.checking.rayservice import HEAD, groups
from deploy.launch.deployment_file import Deployment

_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}


def check(
    service: Document, policies: Sequence[Document], served: Document, deployment: Deployment
) -> list[Finding]:
    """Find the deployment's addresses whose port no policy allows as egress of Ray's pods.

    Only ports are compared: which pods serve a name is known in the cluster alone. What cannot be
    decided from the manifests counts as allowed: labels that the operator adds, expressions, named
    ports.
    """
    labels = pod_labels(service)
    holding = [
        policy
        for policy in policies
        if _holds_back(policy.at(("spec",), {}))
        and any(selects(policy.at(("spec", "podSelector"), {}), own) for own in labels)
    ]
    if not holding:
        return []
    rules = [rule for policy in holding for rule in policy.at(("spec", "egress"), [])]
    return [
        served.finding(path, f"{url}: no NetworkPolicy lets Ray's pods out to port {port}")
        for path, url, port in _addresses(deployment)
        if not any(_lets(rule, port, labels) for rule in rules)
    ]


def pod_labels(service: Document) -> list[dict[str, str]]:
    """Return the labels of Ray's pods: of the head first, then of each group."""
    pods = [service.at(HEAD, {}), *(group for _, group in groups(service.data))]
    return [dict(at(pod, ("template", "metadata", "labels"), {})) for pod in pods]


def _holds_back(spec: Any) -> bool:
    """Return whether a policy restricts egress, by Kubernetes' rules."""
    implied = ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]
    return "Egress" in spec.get("policyTypes", implied)


def _addresses(deployment: Deployment) -> Iterator[tuple[Path, str, int]]:
    """Yield the addresses that the deployment calls: the setting's path, the address, its port."""
    args = deployment.args
    urls: dict[Path, str | None] = {
        ("workers", name, "url"): spec.url for name, spec in args.workers.by_name().items()
    }
    urls["store", "url"] = args.store.url
    urls["tracing", "endpoint"] = args.tracing.endpoint if args.tracing is not None else None
    for field, url in urls.items():
        parts = urlsplit(url or "")
        if parts.scheme in _PORTS:
            port = parts.port or _PORTS[parts.scheme]
            yield (*inner.ARGS, *field), f"{parts.hostname}:{port}", port


def _lets(rule: Any, port: int, labels: list[dict[str, str]]) -> bool:
    ports = at(rule, ("ports",), [])
    if ports and not any(_covers(one, port) for one in ports):
        return False
    peers = at(rule, ("to",), [])
    return not peers or not all(_own(peer, labels) for peer in peers)


def _covers(entry: Any, port: int) -> bool:
    first = entry.get("port")
    last = entry.get("endPort", first)
    if entry.get("protocol", "TCP") != "TCP":
        return False
    return not isinstance(first, int) or first <= port <= last


def _own(peer: Any, labels: list[dict[str, str]]) -> bool:
    """Return whether a peer is Ray's own pods, which serve none of the addresses."""
    selector = peer.get("podSelector")
    if selector is None or "namespaceSelector" in peer or "matchExpressions" in selector:
        return False
    return bool(selector) and any(selects(selector, own) for own in labels)


def selects(selector: Any, labels: dict[str, str]) -> bool:
    """Return whether a selector may match these labels, apart from those that the operator adds."""
    wanted = at(selector, ("matchLabels",), {})
    if not isinstance(wanted, dict):
        return False  # the schema's check reports it
    return {key: wanted[key] for key in wanted if not str(key).startswith("ray.io/")}.items() <= (
        labels.items()
    )
