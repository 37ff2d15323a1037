"""Measure the house: lines of the product, the laboratory and the tests, names, words, parameters.

    python -m tests.house.measure [ROOT ...] [--json]

Each ROOT is a checkout (this one unless named); several are printed side by side. Lines include
blank lines and docstrings.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

PACKAGES = ("orchestrator", "policies", "workers", "deploy")
LABORATORY = ("deploy/lab", "tests/lab", "tests/house")
MOST_PARAMETERS = 7


def sources(root: Path) -> list[str]:
    """The product's Python files, relative to the root."""
    return [name for name in _files(root, PACKAGES) if not in_laboratory(name)]


def in_laboratory(name: str) -> bool:
    """Whether a file belongs to the laboratory; its tests (`test_*.py`) are tests."""
    module = name.removesuffix(".py")
    if Path(name).name.startswith("test_"):
        return False
    return any(module == room or module.startswith(f"{room}/") for room in LABORATORY)


def _files(root: Path, folders: Iterable[str]) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for name in folders for path in (root / name).rglob("*.py")
    )


def public_classes(root: Path) -> dict[str, list[str]]:
    """Files by public top-level class."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sources(root):
        for node in ast.parse((root / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def crowded(root: Path) -> list[str]:
    """Functions of more than seven parameters, `self` not counted, commands of the CLI apart."""
    found = []
    for name in sources(root):
        if name.startswith("deploy/cli/"):
            continue
        for node in ast.walk(ast.parse((root / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                if len([one for one in names if one not in ("self", "cls")]) > MOST_PARAMETERS:
                    found.append(f"{name}:{node.lineno} {node.name}")
    return found


def circles(root: Path) -> list[list[str]]:
    """Groups of product modules that import each other, in functions and for types too."""
    names = {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): name
        for name in sources(root)
    }
    graph = {
        module: _imported(ast.parse((root / name).read_text(encoding="utf-8")), names.keys())
        & names.keys()
        for module, name in names.items()
    }
    reach = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted({module} | {other for other in reach[module] if module in reach[other]}))
        for module in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _imported(tree: ast.Module, names: Set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & names) or {node.module}
    return found


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for module in graph[todo.pop()] - found:
            found.add(module)
            todo.append(module)
    return found


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def measured(root: Path) -> dict[str, Any]:
    """All figures of one checkout."""
    rooms: Counter[str] = Counter()
    for name in sources(root):
        rooms["/".join(Path(name).parts[:-1][:2])] += _lines(root, name)
    everything = _files(root, (*PACKAGES, "tests"))
    laboratory = [name for name in everything if in_laboratory(name)]
    tests = [name for name in everything if name.startswith("tests/") and not in_laboratory(name)]
    return {
        "product lines": sum(rooms.values()),
        "laboratory lines": sum(_lines(root, name) for name in laboratory),
        "test lines": sum(_lines(root, name) for name in tests),
        "functions of more than 7 parameters": len(crowded(root)),
        "flat files in the HTTP room": len(list((root / "orchestrator/http").glob("*.py"))),
        "import circles": len(circles(root)),
        "words in docs": words((root / "docs").rglob("*.md")),
        "words in README": words([root / "README.md"]),
        "targets of make": len(
            re.findall(r"^[a-z-]+:.*## ", (root / "Makefile").read_text(), re.M)
        ),
        **{f"lines of {room}": lines for room, lines in sorted(rooms.items())},
    }


def _lines(root: Path, name: str) -> int:
    return len((root / name).read_text(encoding="utf-8").splitlines())


def main(*arguments: str) -> None:
    as_json = "--json" in arguments
    roots = [Path(one) for one in arguments if one != "--json"] or [Path()]
    columns = [measured(root) for root in roots]
    if as_json:
        print(json.dumps(dict(zip(map(str, roots), columns, strict=True)), indent=1))
        return
    names = list(dict.fromkeys(name for column in columns for name in column))
    width = max(map(len, names))
    print(" " * width, *(f"{root!s:>12.12}" for root in roots))
    for name in names:
        print(f"{name:<{width}}", *(f"{column.get(name, 0):>12,}" for column in columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
