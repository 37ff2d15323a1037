"""The size and order of the house: lines by room, names with two meanings, README, assertions.

    python -m tests.house.measure [ROOT ...] [--json]

Each ROOT is a checkout, the first one the present tree unless named; several stand side by side.
Lines are those of the files, blank ones and docstrings included. Offline are the rooms of tools
that no request needs (`OFFLINE` of tests/test_imports.py, and where
they lay before they had rooms).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

PACKAGES = ("orchestrator", "policies", "workers", "deploy")
OFFLINE = (
    "workers/training", "workers/scripted", "deploy/bench", "deploy/checking", "deploy/cli",
    "deploy/evaluation", "deploy/launch",
    # The same tools where they lay before.
    "workers/models", "deploy/commands", "deploy/decoding", "deploy/askers", "deploy/grading",
    "deploy/journal", "deploy/plots", "deploy/prediction", "deploy/problems", "deploy/results",
    "deploy/claims", "deploy/tables", "deploy/sizing", "deploy/traffic", "deploy/service_client",
    "orchestrator/calibrate", "orchestrator/costs", "orchestrator/evaluate", "orchestrator/summary",
    "orchestrator/memo", "orchestrator/intervals", "orchestrator/record", "orchestrator/answers",
)  # fmt: skip


def sources(root: Path) -> list[str]:
    """The product's Python files, relative to the root."""
    return sorted(
        str(path.relative_to(root)) for name in PACKAGES for path in (root / name).rglob("*.py")
    )


def is_offline(name: str) -> bool:
    module = name.removesuffix(".py")
    return any(module == room or module.startswith(f"{room}/") for room in OFFLINE)


def room_of(name: str) -> str:
    """The folder a file lies in, of at most two levels."""
    return "/".join(Path(name).parts[:-1][:2])


def public_classes(root: Path) -> dict[str, list[str]]:
    """Files by public top-level class."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sources(root):
        for node in ast.parse((root / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def assertions(root: Path) -> int:
    """Assert statements and `pytest.raises` in the tests."""
    count = 0
    for path in (root / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            count += isinstance(node, ast.Assert)
            count += isinstance(node, ast.Attribute) and node.attr == "raises"
    return count


def measured(root: Path) -> dict[str, Any]:
    """All figures of one checkout."""
    rooms: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name in sources(root):
        lines = len((root / name).read_text(encoding="utf-8").splitlines())
        kind = "offline" if is_offline(name) else "serving"
        rooms[f"{room_of(name)} ({kind})"] += lines
        totals[kind] += lines
        files[kind] += 1
    readme = (root / "README.md").read_text(encoding="utf-8")
    twice = sorted(name for name, places in public_classes(root).items() if len(places) > 1)
    return {
        "serving lines": totals["serving"],
        "offline lines": totals["offline"],
        "serving files": files["serving"],
        "offline files": files["offline"],
        "public class names with two meanings": len(twice),
        "README words": len(re.findall(r"\S+", readme)),
        "assertions in tests": assertions(root),
        **{f"lines of {room}": lines for room, lines in sorted(rooms.items())},
        "names": twice,
    }


def main(*arguments: str) -> None:
    as_json = "--json" in arguments
    roots = [Path(one) for one in arguments if one != "--json"] or [Path()]
    columns = [measured(root) for root in roots]
    if as_json:
        print(json.dumps(dict(zip(map(str, roots), columns, strict=True)), indent=1))
        return
    names = list(dict.fromkeys(name for column in columns for name in column if name != "names"))
    width = max(map(len, names))
    print(" " * width, *(f"{root!s:>12.12}" for root in roots))
    for name in names:
        print(f"{name:<{width}}", *(f"{column.get(name, 0):>12,}" for column in columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
