"""The parts of a RayService manifest."""

from __future__ import annotations

import re
from typing import Any

from deploy.checking.documents import Path, at

CLUSTER = ("spec", "rayClusterConfig")
HEAD = (*CLUSTER, "headGroupSpec")


def groups(manifest: Any) -> list[tuple[Path, Any]]:
    """Return the worker groups, each with its path."""
    path = (*CLUSTER, "workerGroupSpecs")
    return [((*path, index), group) for index, group in enumerate(at(manifest, path, []))]


def environment(container: Any) -> dict[str, Any]:
    """Return the variables of a container, by name."""
    return {str(entry.get("name")): entry for entry in at(container, ("env",), [])}


def version(text: Any) -> tuple[int, ...]:
    """Return `2.60.0` as numbers; () if it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", str(text or ""))
    return tuple(int(part or 0) for part in found.groups()) if found else ()
