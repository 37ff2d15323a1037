"""The path of a request, as ARCHITECTURE.md has it: it exists, and it leaves nothing out."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.serving import post, service, serving

ROOT = Path(__file__).parents[1]
MOST_FILES = 25
STEP = re.compile(r"(?:\d+\.|-) `([\w/]+\.py)` (`[\w.]+`(?:, `[\w.]+`)*): ")
DATA = {  # types that requests are made of, and the errors that they may meet
    "orchestrator/errors.py",
    "orchestrator/http/errors.py",
    "orchestrator/loop/actions.py",
    "orchestrator/types.py",
    "orchestrator/worker.py",
}
BACKGROUND = {  # tasks of their own, that run whether there are requests or not
    "orchestrator/experiments/experimenter.py",
    "orchestrator/http/shared.py",
    "orchestrator/state/memory.py",
    "orchestrator/state/store.py",
    "orchestrator/state/watcher.py",
}


def steps(kind: str) -> dict[str, set[str]]:
    """Functions by file: those of the numbered list (`path`), or of the other (`beside`)."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## The path of a request\n")[2].partition("\n## ")[0]
    listed: dict[str, set[str]] = {}
    for item in re.findall(r"^(?:\d+\.|-) .+(?:\n {2,}.+)*", section, flags=re.MULTILINE):
        match = STEP.match(" ".join(item.split()))
        assert match, f"not FILE FUNCTION: TEXT: {item}"
        if item[0].isdigit() == (kind == "path"):
            listed.setdefault(match[1], set()).update(re.findall(r"`([\w.]+)`", match[2]))
    return listed


def functions(path: Path) -> set[str]:
    """Every function `f` and method `Class.f` that a file defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


@pytest.mark.parametrize("kind", ["path", "beside"])
def test_every_step_exists(kind: str) -> None:
    listed = steps(kind)
    assert listed
    missing = {
        file: names - functions(ROOT / file)
        for file, names in listed.items()
        if not (ROOT / file).is_file() or names - functions(ROOT / file)
    }
    assert missing == {}


def test_the_path_is_short() -> None:
    path, beside = steps("path"), steps("beside")
    assert len(path) <= MOST_FILES
    assert path.keys() & beside.keys() == set()
    assert next(iter(path)) == "orchestrator/http/middleware.py"


def test_a_request_runs_through_no_other_file() -> None:
    """Traced with scripted workers; of the workers' files the list is taken at its word."""
    ran: set[str] = set()

    def trace(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith((f"{ROOT}/orchestrator/", f"{ROOT}/policies/")):
            ran.add(str(Path(name).relative_to(ROOT)))

    made = service()
    threading.setprofile(trace)  # the server's thread is begun below
    try:
        with serving(made) as url:
            assert post(url).status_code == 200  # what runs once only, runs here
            ran.clear()
            assert post(url, {"stream": True}).text.endswith("data: [DONE]\n\n")
            assert post(url).status_code == 200
            during = set(ran)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    listed = steps("path").keys() | steps("beside").keys()
    assert during - listed - DATA - BACKGROUND == set()
    ours = {file for file in listed if file.startswith(("orchestrator/", "policies/"))}
    assert ours - during - {"orchestrator/http/app.py"} == set()
