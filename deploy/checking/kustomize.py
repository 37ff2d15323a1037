"""An overlay as kustomize renders it, with every entry's place in the files it came from.

Read are `resources`, `components`, `patches` (JSON 6902, with a target's kind and name),
`configMapGenerator` (files, with kustomize's local-config annotation: a source for replacements),
`replacements` (of whole fields), `images` and `namespace`. Everything else is refused: render such
an overlay with kustomize, and check what comes out. The tests hold the two to be equal.

Why not call `kustomize build`: its output no longer has the files and lines that findings name, and
the kubectl of Debian 12 (1.20) refuses `components` and a generator's `options`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any, NoReturn

from deploy.checking.located_yaml import (
    Items,
    Mapping,
    SourceLocation,
    at,
    dotted,
    located_text,
    location_of,
    read,
)
from orchestrator.errors import ConfigError

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_KNOWN = {
    "apiVersion", "kind", "resources", "components", "patches", "configMapGenerator",
    "replacements", "images", "namespace",
}  # fmt: skip
_CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def kustomization_of(folder: File) -> File | None:
    """The kustomization file of a folder."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def render(folder: File) -> list[Mapping]:
    """The manifests of a kustomization.

    Raises:
        ConfigError: a file is missing or no YAML, or a feature is not read here; names the line.
    """
    return _Build(folder, []).documents


def load(file: File) -> list[Any]:
    """The documents of a file.

    Raises:
        ConfigError: it cannot be read, or is no YAML.
    """
    return read(text_of(file), SourceLocation(str(file), 1))


def text_of(file: File) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}") from None


class _Build:
    """One kustomization, on top of `documents`."""

    def __init__(self, folder: File, documents: list[Mapping]) -> None:
        self._folder, self.documents = folder, documents
        file = kustomization_of(folder)
        if file is None:
            raise ConfigError(f"{folder}: has no kustomization.yaml")
        (self._data,) = load(file) or [Mapping(SourceLocation(str(file), 1))]
        if not isinstance(self._data, Mapping):
            raise ConfigError(f"{file}:1: not a mapping")
        for key in self._data:
            if key not in _KNOWN:
                self._fail((key,), "not read here: check what `kustomize build` makes of it")
        self._resources()
        for index, name in enumerate(self._list("components")):
            self.documents = _Build(self._inside(("components", index), name), documents).documents
        self._sources = self._generated()
        for index, _ in enumerate(self._list("patches")):
            self._patch(("patches", index))
        for index, _ in enumerate(self._list("replacements")):
            self._replace(("replacements", index))
        for index, _ in enumerate(self._list("images")):
            self._image(("images", index))
        self._namespace()

    def _fail(self, path: tuple[str | int, ...], message: str) -> NoReturn:
        location = location_of(self._data, path)
        raise ConfigError(f"{location.file}:{location.line}: {dotted(path)}: {message}")

    def _list(self, key: str) -> Any:
        value = self._data.get(key) or []
        if not isinstance(value, list):
            self._fail((key,), "must be a list")
        return value

    def _need(self, path: tuple[str | int, ...]) -> Any:
        value = at(self._data, path)
        if value is None:
            self._fail(path, "is missing")
        return value

    def _inside(self, path: tuple[str | int, ...], name: Any) -> File:
        location = (self._folder / str(name)).resolve()
        if not location.exists():
            self._fail(path, f"there is no {name}")
        return File(_shortest(self._folder, str(name)))

    def _resources(self) -> None:
        for index, name in enumerate(self._list("resources")):
            location = self._inside(("resources", index), name)
            if location.is_dir():
                self.documents += _Build(location, []).documents
            else:
                self.documents += load(location)

    def _generated(self) -> dict[str, Mapping]:
        """ConfigMaps that exist only as sources of replacements."""
        sources = {}
        for index, _ in enumerate(self._list("configMapGenerator")):
            path = ("configMapGenerator", index)
            annotations = at(self._data, (*path, "options", "annotations"), {})
            if annotations.get("config.kubernetes.io/local-config") != "true":
                self._fail(path, "read here only with the local-config annotation")
            data = Mapping(location_of(self._data, path))
            for number, name in enumerate(self._need((*path, "files"))):
                file = self._inside((*path, "files", number), name)
                location = SourceLocation(str(file), 1)
                data.put(file.name, located_text(text_of(file), location), location)
            sources[str(self._need((*path, "name")))] = data
        return sources

    def _targets(self, kind: Any, name: Any) -> Iterator[Mapping]:
        for document in self.documents:
            named = name is None or at(document, ("metadata", "name")) == name
            if document.get("kind") == kind and named:
                yield document

    def _patch(self, path: tuple[str | int, ...]) -> None:
        entry = at(self._data, path)
        if "path" in entry:
            (operations,) = load(self._inside((*path, "path"), entry["path"]))
        else:
            inline = self._need((*path, "patch"))
            (operations,) = read(inline, inline.location)
        if not isinstance(operations, Items):
            self._fail(path, "read here only as a list of JSON 6902 operations")
        target = self._need((*path, "target"))
        found = list(self._targets(target.get("kind"), target.get("name")))
        if not found:
            self._fail((*path, "target"), "matches nothing")
        for document in found:
            for index, operation in enumerate(operations):
                _operate(document, operation, operations.locations[index])

    def _replace(self, path: tuple[str | int, ...]) -> None:
        source = self._need((*path, "source"))
        name, field = source.get("name"), str(source.get("fieldPath", ""))
        key = field.removeprefix("data.").replace("\\.", ".")
        if source.get("kind") != "ConfigMap" or key not in self._sources.get(name, {}):
            self._fail((*path, "source"), f"no generated ConfigMap {name} has {field}")
        value = self._sources[name][key]
        for number, target in enumerate(self._need((*path, "targets"))):
            select = target.get("select") or {}
            found = list(self._targets(select.get("kind"), select.get("name")))
            if not found:
                self._fail((*path, "targets", number), "matches nothing")
            for document in found:
                for field in target.get("fieldPaths") or ():
                    _put(document, field.split("."), value, value.location)

    def _image(self, path: tuple[str | int, ...]) -> None:
        entry = at(self._data, path)
        for document in self.documents:
            for container in _containers(document):
                name, tag = _split(str(container.get("image", "")))
                if name == entry.get("name"):
                    tag = str(entry.get("newTag", tag))
                    image = str(entry.get("newName", name)) + (f":{tag}" if tag else "")
                    location = location_of(self._data, path)
                    container.put("image", located_text(image, location), location)

    def _namespace(self) -> None:
        name = self._data.get("namespace")
        for document in self.documents if name else ():
            if document.get("kind") not in _CLUSTER_WIDE:
                _put(document, ["metadata", "namespace"], name, self._data.locations["namespace"])


def _shortest(folder: File, name: str) -> str:
    """`folder/name` without `x/..`, as a reader would write it."""
    parts: list[str] = []
    for part in (folder / name).parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        else:
            parts.append(part)
    return str(File(*parts)) if parts else "."


def _split(image: str) -> tuple[str, str]:
    """Name and tag of an image; a colon before the last slash is a port's."""
    name, _, tag = image.rpartition(":")
    return (name, tag) if name and "/" not in tag else (image, "")


def _containers(data: Any) -> Iterator[Mapping]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key in ("containers", "initContainers") and isinstance(value, list):
                yield from value
            else:
                yield from _containers(value)
    elif isinstance(data, list):
        for value in data:
            yield from _containers(value)


def _put(data: Any, steps: list[str], value: Any, location: SourceLocation) -> None:
    for step in steps[:-1]:
        if step not in data:
            data.put(step, Mapping(location), location)
        data = data[step]
    data.put(steps[-1], value, location)


def _operate(document: Mapping, operation: Any, location: SourceLocation) -> None:
    """One JSON 6902 operation (RFC 6902, section 4); pointers as in RFC 6901."""

    def fail(message: str) -> NoReturn:
        raise ConfigError(f"{location.file}:{location.line}: {message}")

    pointer = str(at(operation, ("path",), ""))
    steps = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    kind = at(operation, ("op",))
    if not steps:
        fail("path: is missing")
    parent: Any = document
    for step in steps[:-1]:
        is_item = isinstance(parent, list) and step.isdecimal()
        parent = at(parent, (int(step) if is_item else step,))
        if parent is None:
            fail(f"{pointer}: there is no {step}")
    last = steps[-1]
    value = copy.deepcopy(at(operation, ("value",)))
    where = location_of(operation, ("value",))
    if isinstance(parent, Items):
        index = len(parent) if last == "-" else int(last) if last.isdecimal() else math.inf
        if index > len(parent) - (kind != "add"):
            fail(f"{pointer}: there is no item {last}")
        index = int(index)
        if kind in ("remove", "replace"):
            del parent[index], parent.locations[index]
        if kind in ("add", "replace"):
            parent.put(index, value, where)
    else:
        if not isinstance(parent, Mapping) or (kind != "add" and last not in parent):
            fail(f"{pointer}: there is no {last}")
        if kind in ("add", "replace"):
            parent.put(last, value, where)
        elif kind == "remove":
            del parent[last]
    if kind not in ("add", "replace", "remove"):
        fail(f"op: {kind!r} is not read here (add, replace, remove are)")
