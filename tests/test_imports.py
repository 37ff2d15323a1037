"""Who may import whom: the import rule of ARCHITECTURE.md, held by reading every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("orchestrator", "policies", "workers", "deploy")

OFFLINE = ("deploy.checking", "deploy.cli", "deploy.evaluation", "deploy.lab", "deploy.launch")
"""Rooms of tools that no request needs; all others serve."""
POLICY_MAY = {f"orchestrator.{name}" for name in ("types", "errors", "loop.actions", "loop.policy")}
WORKER_MAY = {
    f"orchestrator.{name}"
    for name in ("types", "worker", "errors", "grammar", "background", "call_markup", "efforts")
}
POLICY_MAY_NOT = {"asyncio", "time", "random"}  # they reach a policy as answers and seeds
ORCHESTRATOR_MAY_NOT = {"ray", "torch", "transformers"}
METHODS_SHARE = {"decode", "drafter", "feature_head", "lossy", "method", "parameters", "rejection"}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it; `from a import b` as `a.b` where b is one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if _is_module(inner) else node.module


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def cases(package: str) -> list[tuple[str, str]]:
    return [(module(path), name) for path in files(package) for name in imports(path)]


def top(name: str) -> str:
    return name.partition(".")[0]


def in_room(name: str, rooms: Iterable[str]) -> bool:
    """Whether a module is, or lies in, one of these packages."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def ids(case: tuple[str, str]) -> str:
    return f"{case[0]}->{case[1]}"


def test_there_are_files() -> None:
    assert all(files(package) for package in OURS)


@pytest.mark.parametrize("package", OURS)
def test_nobody_imports_deploy_or_tests(package: str) -> None:
    wrong = [case for case in cases(package) if top(case[1]) == "tests"]
    if package != "deploy":
        wrong += [case for case in cases(package) if top(case[1]) == "deploy"]
    assert wrong == []


def test_the_core_knows_no_model_and_no_policy() -> None:
    banned = {"policies", "workers", *ORCHESTRATOR_MAY_NOT}
    assert [case for case in cases("orchestrator") if top(case[1]) in banned] == []


def test_policies_are_pure() -> None:
    wrong = []
    for who, name in cases("policies"):
        if top(name) == "orchestrator":
            allowed = name in POLICY_MAY
        elif top(name) == "policies":
            allowed = True
        else:
            standard = top(name) in sys.stdlib_module_names and top(name) not in POLICY_MAY_NOT
            allowed = top(name) == "pydantic" or standard
        if not allowed:
            wrong.append((who, name))
    assert wrong == []


def test_workers_know_the_port_alone() -> None:
    ours = [case for case in cases("workers") if top(case[1]) in OURS and top(case[1]) != "workers"]
    assert [case for case in ours if case[1] not in WORKER_MAY] == []


@pytest.mark.parametrize(
    ("library", "where"), [("ray", "workers.replica"), ("httpx", "workers.remote")]
)
def test_only_one_room_knows_the_library(library: str, where: str) -> None:
    found = {who for who, name in cases("workers") if top(name) == library}
    assert found
    assert {who for who in found if not in_room(who, (where,))} == set()


def test_what_serves_imports_no_offline_tool() -> None:
    wrong = [
        (who, name)
        for package in OURS
        for who, name in cases(package)
        if in_room(name, OFFLINE) and not in_room(who, OFFLINE)
    ]
    assert wrong == []


def test_nothing_but_the_command_line_imports_the_laboratory() -> None:
    """The wheel has none."""
    wrong = [
        (who, name)
        for who, name in cases("deploy")
        if in_room(name, ("deploy.lab",)) and not in_room(who, ("deploy.lab", "deploy.cli.main"))
    ]
    assert wrong == []


def test_methods_know_neither_the_engine_nor_each_other() -> None:
    wrong = []
    for who, name in cases("workers"):
        if not who.startswith("workers.speculation."):
            continue
        inside = name.startswith("workers.speculation.")
        method = name.rpartition(".")[2]
        if inside and method in METHODS_SHARE:
            continue
        shared = in_room(name, ("workers.model", "workers.rng"))
        if not shared and (inside or top(name) == "workers"):
            wrong.append((who, name))
    assert wrong == []


def test_the_command_line_starts_without_torch_and_ray() -> None:
    """Help soon: what is slow to import is imported where it is used."""
    slow = {"ray", "torch", "transformers", "matplotlib", "sklearn"}
    look = "import sys; from deploy.cli.main import program; program(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert slow & set(done.stdout.split()) == set()
