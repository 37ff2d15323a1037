"""Manifests against Kubernetes' schemas and the RayService's, without a cluster.

Kubernetes' schemas come with the package kubernetes-validate. A RayService is checked against the
CRD if one is given, else against the fields in rayservice.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.checking.documents import Document, Finding
from deploy.service.extras import want
from orchestrator.errors import ConfigError
from orchestrator.validation import unknown

_DEFINITIONS = "_definitions.json"
_TYPES = f"/api/{_DEFINITIONS}#/$defs/"
_METADATA = {"$ref": f"{_TYPES}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
_LONGEST = 160  # characters of a message: some quote the whole manifest


def rayservice(crd: Path | None = None) -> Any:
    """Return the schema of RayServices, as the API server applies it; `crd`: a file with it.

    Raises:
        ConfigError: the file is no CRD and no schema; kubernetes-validate is not installed.
    """
    want("kubernetes", "the check of manifests", "kubernetes_validate")
    file = crd or Path(__file__).parent / "rayservice.yaml"
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{file}: neither YAML nor JSON: {problem}") from None
    if isinstance(data, dict) and data.get("kind") == "CustomResourceDefinition":
        versions = [one for one in data["spec"]["versions"] if one["name"] == "v1"]
        data = versions[0]["schema"]["openAPIV3Schema"] if versions else None
    if not isinstance(data, dict) or "serveConfigV2" not in json.dumps(data):
        raise ConfigError(f"{file}: holds no schema of ray.io/v1 RayService")
    return _strict({**data, "properties": {**data["properties"], "metadata": _METADATA}})


def check(manifest: Document, ray: Any) -> Iterator[Finding]:
    """Find a manifest's errors by its schema (`ray`: that of RayServices); note if it has none."""
    from jsonschema import Draft202012Validator
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    kind, version = manifest.data["kind"], manifest.data["apiVersion"]
    is_ray = (kind, version.partition("/")[0]) == ("RayService", "ray.io")
    schema = ray if is_ray else _kubernetes(kind, version)
    if schema is None:
        yield manifest.finding(("kind",), f"{version} {kind}: no schema here", "note")
        return
    definitions = DRAFT202012.create_resource(_contents(_DEFINITIONS))
    registry = Registry().with_resource(f"/api/{_DEFINITIONS}", definitions)
    bare = {key: value for key, value in schema.items() if key != "$id"}
    for error in Draft202012Validator(bare, registry=registry).iter_errors(manifest.data):
        path = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = list(error.schema.get("properties", ()))
            for key in (key for key in error.instance if key not in known):
                yield manifest.finding((*path, key), unknown("field", str(key), known))
        elif error.validator == "required":
            for name in error.validator_value:  # all at each error; `files.check` drops duplicates
                if name not in error.instance:
                    yield manifest.finding((*path, name), "is missing")
        else:
            message = error.message
            if len(message) > _LONGEST:
                message = f"must be {error.validator} {error.validator_value}"[:_LONGEST]
            yield manifest.finding(path, message)


def _strict(schema: Any) -> Any:
    """Return a CRD's schema as the API server applies it: no fields but those it names.

    A required field that has a default may be missing: the server fills it in first. A quantity is
    a string or a number. `kubernetes: X` stands for Kubernetes' own schema of X.
    """
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "kubernetes" in schema:
        return {"$ref": f"{_TYPES}{schema['kubernetes']}"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "number", "string"]}
    made = {key: _strict(value) for key, value in schema.items() if key != "properties"}
    properties = schema.get("properties")
    if properties is not None:
        made["properties"] = {name: _strict(inner) for name, inner in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        required = schema.get("required", ())
        made["required"] = [name for name in required if "default" not in properties.get(name, {})]
    return made


def _kubernetes(kind: str, version: str) -> Any:
    """Return the schema of a built-in kind; None if there is none."""
    group, slash, number = version.rpartition("/")
    name = f"{kind}-{group.partition('.')[0]}{'-' if slash else ''}{number}".lower()
    if not re.fullmatch(r"[a-z0-9-]+", name):
        return None
    try:
        return _contents(f"{name}.json")
    except FileNotFoundError:
        return None


@cache
def _contents(name: str) -> Any:
    """Return a file of kubernetes-validate's newest schemas."""
    from kubernetes_validate.utils import latest_version, schema_contents

    newest = latest_version()
    folder = f"kubernetes-json-schema/v{newest}-local-strict"
    return schema_contents(f"{folder}/{name}", newest)
