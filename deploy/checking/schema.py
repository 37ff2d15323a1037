"""Checks manifests against Kubernetes' schemas and the RayService's, without a cluster.

Kubernetes' schemas come with the package kubernetes-validate. A RayService is checked against the
CRD if one is given (`kubectl get crd rayservices.ray.io -o yaml`), else against the fields in
rayservice.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from deploy.checking.documents import Document, Finding
from deploy.service.extras import want
from orchestrator.errors import ConfigError
from orchestrator.validation import unknown

_KUBERNETES = "/api/_definitions.json#/$defs/"
_LONGEST = 160  # characters of a message: some quote the whole manifest


class Schemas:
    """The schemas of all kinds; `crd` is a file with the RayService's.

    Raises:
        ConfigError: the file is no CRD and no schema; kubernetes-validate is not installed.
    """

    def __init__(self, crd: Path | None = None) -> None:
        _definitions()
        self._ray = strict(_crd_schema(crd)) if crd is not None else _own_schema()

    def check(self, manifest: Document) -> list[Finding]:
        """Return the errors that the manifest's schema finds; a note if there is no schema."""
        kind, version = str(manifest.data.get("kind")), str(manifest.data.get("apiVersion"))
        if (kind, version.partition("/")[0]) == ("RayService", "ray.io"):
            return list(_findings(self._ray, manifest))
        schema = _kubernetes_schema(kind, version)
        if schema is None:
            return [manifest.finding(("kind",), f"{version} {kind}: no schema here", "note")]
        return list(_findings(schema, manifest))


def strict(schema: Any) -> Any:
    """A CRD's schema as the API server applies it: no fields but those it names.

    A required field that has a default may be missing: the server fills it in first. A quantity
    is a string or a number.
    """
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "number", "string"]}
    made = {
        key: {name: strict(inner) for name, inner in value.items()}
        if key == "properties"
        else strict(value)
        for key, value in schema.items()
    }
    properties = schema.get("properties")
    if properties is not None:
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        made["required"] = [
            name for name in schema.get("required", ()) if "default" not in properties.get(name, {})
        ]
    return made


def _crd_schema(file: Path) -> Any:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from None
    if isinstance(data, dict) and data.get("kind") == "CustomResourceDefinition":
        versions = [one for one in data["spec"]["versions"] if one["name"] == "v1"]
        data = versions[0]["schema"]["openAPIV3Schema"] if versions else None
    if not isinstance(data, dict) or "serveConfigV2" not in json.dumps(data):
        raise ConfigError(f"{file}: holds no schema of ray.io/v1 RayService")
    metadata = {"$ref": f"{_KUBERNETES}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    return {**data, "properties": {**data["properties"], "metadata": metadata}}


@cache
def _own_schema() -> Any:
    text = (Path(__file__).parent / "rayservice.yaml").read_text(encoding="utf-8")
    return strict(_resolved(yaml.safe_load(text)))


def _resolved(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_resolved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "kubernetes" in schema:
        return {"$ref": f"{_KUBERNETES}{schema['kubernetes']}"}
    return {key: _resolved(value) for key, value in schema.items()}


@cache
def _folder() -> Any:
    want("kubernetes", "the check of manifests", "kubernetes_validate")
    root = files("kubernetes_validate")
    folders = [f for f in (root / "kubernetes-json-schema").iterdir() if f.name.endswith("strict")]
    return max(folders, key=lambda f: [int(n) for n in re.findall(r"\d+", f.name)])


@cache
def _definitions() -> Any:
    return json.loads((_folder() / "_definitions.json").read_text(encoding="utf-8"))


def _kubernetes_schema(kind: str, version: str) -> Any:
    """The schema of a built-in kind; None where there is none."""
    group, slash, number = version.rpartition("/")
    suffix = f"{group.partition('.')[0]}-{number}" if slash else number
    file = _folder() / f"{kind.lower()}-{suffix}.json"
    if not re.fullmatch(r"[a-z0-9-]+\.json", file.name) or not file.is_file():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


def _findings(schema: Any, manifest: Document) -> Iterator[Finding]:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    definitions = Resource.from_contents(_definitions(), default_specification=DRAFT202012)
    registry = Registry().with_resource("/api/_definitions.json", definitions)
    bare = {key: value for key, value in schema.items() if key != "$id"}
    for error in Draft202012Validator(bare, registry=registry).iter_errors(manifest.data):
        path = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = list(error.schema.get("properties", ()))
            for key in error.instance:
                if key not in known:
                    yield manifest.finding((*path, key), unknown("field", str(key), known))
        elif error.validator == "required":
            for name in error.validator_value:  # all at each error; `check` drops duplicates
                if name not in error.instance:
                    yield manifest.finding((*path, name), "is missing")
        else:
            message = error.message
            if len(message) > _LONGEST:
                message = f"must be {error.validator} {error.validator_value}"[:_LONGEST]
            yield manifest.finding(path, message)
