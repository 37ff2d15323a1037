"""`GET /docs`: the OpenAPI document as a page for people. It loads nothing and runs no script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from orchestrator.http.openapi import HINT, UNSUPPORTED

Json = dict[str, Any]

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid #ddd; }
summary { cursor: pointer; padding: .3rem 0; }
.method { display: inline-block; min-width: 3.5rem; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; } pre { background: #252525; }
  td, th { border-color: #444; } a { color: #8bf; }
}
"""
_EXAMPLE: Final = """curl URL/v1/chat/completions -H 'content-type: application/json' -d '{
  "model": "specreason",
  "messages": [{"role": "user", "content": "What is 37*46+12?"}]
}'"""


def page(document: Json, url: str) -> str:
    """The HTML page of an OpenAPI document; `url` is where the service answers."""
    return "".join(_page(document, url))


def _page(document: Json, url: str) -> Iterator[str]:
    info, schemas = document["info"], document["components"]["schemas"]
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['summary'])} OpenAI's clients work unmodified; their base URL is "
        f"<code>{escape(url)}/v1</code>. The same as a document: "
        f'<a href="{escape(url)}/openapi.json">openapi.json</a>.</p>'
        f"<pre>{escape(_EXAMPLE.replace('URL', url))}</pre><h2>Paths</h2>"
    )
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _operation(method, path, operation, schemas)
    yield "<h2>Parameters of policies</h2><p>They go into <code>policy</code> of a request.</p>"
    for name, schema in schemas.items():
        if name.startswith("policy."):
            about = str(schema.get("description", "")).partition("\n\n")[0]
            yield f"<h3>{escape(name.removeprefix('policy.'))}</h3><p>{escape(about)}</p>"
            yield from _table(schema, schemas)
    yield "</html>"


def _operation(method: str, path: str, operation: Json, schemas: Json) -> Iterator[str]:
    yield (
        f'<details><summary><span class="method">{escape(method.upper())}</span> '
        f"<code>{escape(path)}</code> {escape(operation.get('summary', ''))}</summary>"
    )
    if rows := operation.get("parameters"):
        given = {row["name"]: row["schema"] for row in rows}
        wanted = [row["name"] for row in rows if row.get("required")]
        yield from _table({"properties": given, "required": wanted}, schemas)
    if body := operation.get("requestBody"):
        yield from _table(body["content"]["application/json"]["schema"], schemas)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            for kind, content in answer["content"].items():
                yield f"<p>Answers {escape(status)}, <code>{escape(kind)}</code>:</p>"
                yield from _table(content["schema"], schemas, says="optional")
    yield "</details>"


def _table(schema: Json, schemas: Json, says: str = "required") -> Iterator[str]:
    """What an object may hold; `says`: whether to mark what it must, or what it may."""
    schema = _followed(schema, schemas)
    wanted, listed = schema.get("required", ()), schema.get("properties", {})
    properties = {
        name: about
        for name, about in listed.items()
        if about.get("description") not in (HINT, UNSUPPORTED)
    }
    if not properties:
        return
    yield "<table><tr><th>name<th>type<th>default<th></tr>"
    for name, about in sorted(properties.items(), key=lambda item: item[0] not in wanted):
        default = json.dumps(about["default"]) if "default" in about else ""
        if (name in wanted) == (says == "required"):
            default = says
        shown = escape(about.get("description", ""))
        yield (
            f"<tr><td><code>{escape(name)}</code><td>{escape(_type(about))}"
            f"<td><code>{escape(default)}</code><td>{shown}</tr>"
        )
    yield "</table>"
    for kind in (HINT, UNSUPPORTED):
        names = [name for name, about in listed.items() if about.get("description") == kind]
        if names:
            shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
            yield f"<p>{shown}: {escape(kind)}</p>"


def _followed(schema: Json, schemas: Json) -> Json:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Json = schemas[name] if name else schema
    return found


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
