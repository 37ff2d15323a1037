"""The overlays: what kustomize makes of them, what their schema says, and how they guard."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.checking import schema
from deploy.checking.cluster import groups
from deploy.checking.files import check, rendered, rendering_tool
from orchestrator.errors import ConfigError
from tests.deploy.conftest import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu-demo", "gpu", "high-availability")
CRD = os.environ.get("KUBERAY_SCHEMA")
needs_crd = pytest.mark.skipif(CRD is None, reason="KUBERAY_SCHEMA names no RayService schema")


@cache
def manifests(name: str) -> list[Any]:
    """The manifests of an overlay; the test is skipped if no tool can render it."""
    if rendering_tool() is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    return list(yaml.safe_load_all(rendered(FOLDER / "overlays" / name)))


def programs(folder: Path, texts: dict[str, str]) -> None:
    """Programs of these names, each a shell script."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def by_name(documents: list[Any]) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


@needs_crd
@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_passes_the_operators_own_schema(name: str) -> None:
    assert CRD is not None
    report = check(str(FOLDER / "overlays" / name), Path(CRD))
    assert report.ok, list(map(str, report.findings))


@needs_crd
def test_our_fields_are_those_of_the_operators_schema() -> None:
    """Every one of them, down to where Kubernetes' own types begin."""
    assert CRD is not None
    theirs = json.loads(Path(CRD).read_text())

    def differ(ours: Any, other: Any, path: str) -> Iterator[str]:
        if "$ref" in ours or not ours.get("properties"):
            return
        names = ours["properties"].keys() ^ other.get("properties", {}).keys()
        yield from (f"{path}.{name}" for name in names)
        for name in ours["properties"].keys() & other.get("properties", {}).keys():
            mine, its = ours["properties"][name], other["properties"][name]
            if "enum" in its:
                assert mine.get("enum") == its["enum"], f"{path}.{name}"
            while mine.get("type") == "array":
                mine, its = mine["items"], its["items"]
            yield from differ(mine, its, f"{path}.{name}")

    ours = schema.rayservice()
    assert set(differ(ours, theirs, "")) == set()


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_container_is_locked_in(name: str) -> None:
    for document in manifests(name):
        for pod in holders(document, "containers"):
            context = pod["securityContext"]
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in pod["containers"]:
                locked = container["securityContext"]
                assert locked["readOnlyRootFilesystem"] is True
                assert locked["allowPrivilegeEscalation"] is False
                assert locked["capabilities"] == {"drop": ["ALL"]}
                assert "limits" in container["resources"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_secret_stands_in_a_manifest_and_the_guide_names_them_all(name: str) -> None:
    guide = (ROOT / "docs" / "operate.md").read_text()
    documents = manifests(name)
    assert all(one["kind"] != "Secret" for one in documents)
    kinds = ("secretKeyRef", "credentials")
    holding = [one for document in documents for one in holders(document, *kinds)]
    references = [one[kind] for one in holding for kind in kinds if kind in one]
    keys = {one["key"] for one in references}
    assert {"api-keys", "admin-key", "policy-redis-password"} <= keys
    for key in keys:
        assert f"--from-literal={key}=" in guide, key
    assert {one["name"] for one in references} == {"baton"}


def test_redis_puts_out_only_what_expires_and_long_before_its_pod_is_full() -> None:
    documents = by_name(manifests("gpu"))
    redis = documents["StatefulSet", "policy-redis"]["spec"]
    (container,) = redis["template"]["spec"]["containers"]
    (line,) = container["args"]
    assert "--maxmemory-policy volatile-ttl" in line
    (megabytes,) = re.findall(r"--maxmemory (\d+)mb", line)
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert int(megabytes) <= 512


@pytest.mark.parametrize("name", ["policy-redis", "gcs-redis"])
def test_redis_takes_the_place_of_its_shell_and_reads_its_password(
    name: str, tmp_path: Path
) -> None:
    """A shell in front of it would get the pod's SIGTERM in its stead."""
    documents = by_name(manifests("high-availability"))
    pod = documents["StatefulSet", name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    programs(tmp_path, {"redis-server": 'echo "$$ $*"; cat'})
    with subprocess.Popen(
        [*container["command"], *container["args"]],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": r"a$b \n'c"},
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        started, configuration = shell.communicate()[0].split("\n", 1)
    assert started.startswith(f"{shell.pid} - --dir /data --appendonly yes --maxmemory")
    assert "requirepass" not in started
    assert configuration == "requirepass " + r"a$b \n'c" + "\n"


@pytest.mark.parametrize(
    ("process", "waits"),
    [
        ("ray::ServeReplica:baton:Orchestrator", True),
        ("ray::ProxyActor", True),
        ("ray::HAProxyManager.is_drained", True),
        ("ray::IDLE", False),
        ("/usr/bin/raylet", False),
    ],
)
def test_a_pod_goes_when_neither_replica_nor_proxy_is_left(
    process: str, waits: bool, tmp_path: Path
) -> None:
    cmdline = tmp_path / "cmdline"
    cmdline.write_text(f"{process}\0")
    programs(
        tmp_path,
        {
            "ray": f'echo "$*" >>"{tmp_path}/told"',
            "grep": f'exec {shutil.which("grep")} "$1" "$2" "{cmdline}"',  # for all processes
            "sleep": f'echo slept >>"{tmp_path}/told"; rm "{cmdline}"',
        },
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([FOLDER / "drain.sh", "660"], env={"PATH": path}, check=True, timeout=60)
    drained, *slept = (tmp_path / "told").read_text().splitlines()
    assert drained.startswith("drain-node ")
    assert drained.endswith(" --deadline-remaining-seconds 660")
    assert slept == ["slept"] * waits


def test_a_pod_goes_at_the_deadline_or_without_a_cluster(tmp_path: Path) -> None:
    programs(tmp_path, {"ray": "exit 0", "grep": "exit 0"})
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([FOLDER / "drain.sh", "1"], env=env, check=True, timeout=60)
    programs(tmp_path, {"ray": "exit 1"})
    subprocess.run([FOLDER / "drain.sh", "660"], env=env, check=True, timeout=60)


def test_prometheus_reads_rays_port_of_every_pod_and_the_alerts_as_they_are() -> None:
    documents = by_name(manifests("gpu"))
    shipped = yaml.safe_load((FOLDER / "components" / "monitoring" / "alerts.yaml").read_text())
    assert documents["PrometheusRule", "baton"]["spec"] == shipped["spec"]
    monitor = documents["PodMonitor", "baton"]["spec"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "metrics"
    cluster = documents["RayService", "baton"]["spec"]["rayClusterConfig"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    for template in (group["template"] for group in groups):
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        (ray, *_) = template["spec"]["containers"]
        assert {"name": "metrics", "containerPort": 8080} in ray["ports"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_redis_and_ray_are_behind_policies(name: str) -> None:
    documents = manifests(name)
    guarded = [
        tuple(sorted(one["spec"]["podSelector"]["matchLabels"].items()))
        for one in documents
        if one["kind"] == "NetworkPolicy"
    ]
    sets = [one["spec"] for one in documents if one["kind"] == "StatefulSet"]
    for one in documents:
        if one["kind"] == "RayService":
            cluster = one["spec"]["rayClusterConfig"]
            sets += [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in sets:
        labels = pod["template"]["metadata"]["labels"].items()
        assert any(set(selector) <= set(labels) for selector in guarded), labels
    for one in documents:
        if one["kind"] == "Service":
            assert one["spec"].get("type", "ClusterIP") == "ClusterIP"


def test_the_gateway_that_the_operator_makes_reaches_the_service() -> None:
    def let_in(name: str) -> list[Any]:
        rules = by_name(manifests(name))["NetworkPolicy", "baton"]["spec"]
        label = {"gateway.networking.k8s.io/gateway-name": "baton-gateway"}
        return [
            rule["ports"]
            for rule in rules["ingress"]
            if {"podSelector": {"matchLabels": label}} in rule["from"]
        ]

    assert let_in("gpu") == []
    assert let_in("high-availability") == [[{"port": 8000}]]


def test_two_replicas_of_a_model_are_on_two_machines_and_wanted_by_serve_alone() -> None:
    documents = by_name(manifests("high-availability"))
    for _, group in groups(documents["RayService", "baton"]):
        (spread,) = group["template"]["spec"]["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["labelSelector"] == {"matchLabels": {"ray.io/group": group["groupName"]}}
        assert spread["matchLabelKeys"] == ["ray.io/cluster"]
        if group["groupName"] != "orchestrator":
            assert (spread["maxSkew"], spread["minDomains"]) == (1, 2)
            assert spread["whenUnsatisfiable"] == "DoNotSchedule"
            assert group["minReplicas"] == group["replicas"] == 0
        budget = documents["PodDisruptionBudget", group["groupName"]]["spec"]
        assert budget["minAvailable"] == 1
        assert budget["selector"]["matchLabels"]["ray.io/group"] == group["groupName"]


def test_the_highly_available_deployment_is_the_other_with_more_replicas() -> None:
    plain, more = (
        yaml.safe_load((FOLDER / "overlays" / name / "serve.yaml").read_text())
        for name in ("gpu", "high-availability")
    )
    spread, per_node = (
        {one["name"]: one["max_replicas_per_node"] for one in data.pop("deployments")}
        for data in (plain["applications"][0], more["applications"][0])
    )
    assert spread == {"Orchestrator": 2}
    assert per_node == {"SmallWorker": 1, "LargeWorker": 1, "Orchestrator": 1}
    for data in (plain, more):
        args = data["applications"][0]["args"]
        for pool in (args["workers"]["small"], args["workers"]["large"], args["orchestrator"]):
            least = pool.pop("replicas")["min"]
            assert least == (2 if data is more else 1)
    assert plain == more


def test_a_folder_that_cannot_be_rendered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests("gpu")  # skipped without a tool
    (tmp_path / "kustomization.yaml").write_text("resources: [nothing.yaml]")
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        rendered(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="expected kustomize or kubectl"):
        rendered(FOLDER / "overlays" / "gpu")


def holders(data: Any, *keys: str) -> Iterator[Any]:
    """Yield every mapping in a manifest that has one of these keys."""
    if isinstance(data, dict):
        if data.keys() & set(keys):
            yield data
        data = list(data.values())
    for value in data if isinstance(data, list) else ():
        yield from holders(value, *keys)
