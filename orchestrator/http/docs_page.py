"""`GET /docs`: the OpenAPI document as a page for people. It loads nothing and runs no script."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader

from orchestrator.http.openapi import HINT, UNSUPPORTED

Json = dict[str, Any]

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}
_PAGES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(document: Json, url: str) -> str:
    """The HTML page of an OpenAPI document; `url` is where the service answers."""
    listed = partial(_listed, document["components"]["schemas"])
    template = _PAGES.get_template("docs.html.jinja")
    return template.render(document, url=url, listed=listed, parameters=_parameters)


def _parameters(operation: Json) -> Json:
    """The parameters of a path as the properties of an object."""
    rows = operation.get("parameters", ())
    return {
        "properties": {row["name"]: row["schema"] for row in rows},
        "required": [row["name"] for row in rows if row.get("required")],
    }


def _listed(
    schemas: Json, schema: Json, says: str
) -> tuple[list[tuple[str, ...]], list[tuple[str, list[str]]]]:
    """What an object may hold, as rows of a table, and by what is said of them the names that need
    none; `says`: whether to mark what it must, or what it may."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    wanted, properties = schema.get("required", ()), schema.get("properties", {})
    rows, others = list[tuple[str, ...]](), dict[str, list[str]]({HINT: [], UNSUPPORTED: []})
    for name, about in sorted(properties.items(), key=lambda item: item[0] not in wanted):
        said = about.get("description", "")
        if said in others:
            others[said].append(name)
            continue
        default = json.dumps(about["default"]) if "default" in about else ""
        if (name in wanted) == (says == "required"):
            default = says
        rows.append((name, _type(about), default, said))
    return rows, [(kind, names) for kind, names in others.items() if names]


def _type(schema: Json) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds and "type" not in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in kinds))
    kind = schema.get("type", "any")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema and abs(schema[key]) < 2**31 - 1
    ]
    return " ".join([kind, *bounds])
