"""The path of a request, as ARCHITECTURE.md has it: it exists, and it leaves nothing out."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path
from typing import Any

from tests.orchestrator.serving import post, service, serving

ROOT = Path(__file__).parents[1]
MOST_FILES = 14
STEP = re.compile(r"\d+\. `([\w/]+\.py)` (`[\w.]+`(?:, `[\w.]+`)*): ")
BESIDE = {  # called beside the path, each for one thing
    "orchestrator/background.py",
    "orchestrator/http/admission.py",
    "orchestrator/http/api.py",
    "orchestrator/http/apis/answer_form.py",
    "orchestrator/http/apis/chunks.py",
    "orchestrator/http/apis/parameters.py",
    "orchestrator/http/ask.py",
    "orchestrator/http/auth.py",
    "orchestrator/http/body.py",
    "orchestrator/http/planning.py",
    "orchestrator/http/records.py",
    "orchestrator/http/rendering.py",
    "orchestrator/http/tools/answer_reader.py",
    "orchestrator/http/tools/offered.py",
    "orchestrator/loop/accumulator.py",
    "orchestrator/loop/answer_room.py",
    "orchestrator/loop/budget.py",
    "orchestrator/loop/ending.py",
    "orchestrator/loop/request.py",
    "orchestrator/loop/policy.py",
    "orchestrator/loop/spending.py",
    "orchestrator/loop/stop_strings.py",
    "orchestrator/persistent.py",
    "orchestrator/state/outbox.py",
    "orchestrator/telemetry/logs.py",
    "orchestrator/telemetry/metrics.py",
    "policies/judge.py",
    "policies/steps.py",
}
DATA = {  # types that requests are made of, and the errors that they may meet
    "orchestrator/errors.py",
    "orchestrator/http/errors.py",
    "orchestrator/loop/actions.py",
    "orchestrator/types.py",
    "orchestrator/worker.py",
}
BACKGROUND = {  # tasks of their own, that run whether there are requests or not
    "orchestrator/experiments/experimenter.py",
    "orchestrator/state/memory.py",
    "orchestrator/state/store.py",
    "orchestrator/state/watcher.py",
}


def steps() -> dict[str, set[str]]:
    """Functions by file, as the first walk of ARCHITECTURE.md lists them."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Walk 1: a request\n")[2].partition("\n## ")[0]
    listed: dict[str, set[str]] = {}
    for item in re.findall(r"^\d+\. .+(?:\n {2,}.+)*", section, flags=re.MULTILINE):
        match = STEP.match(" ".join(item.split()))
        assert match, f"not FILE FUNCTION: TEXT: {item}"
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


def test_every_step_exists() -> None:
    listed = steps()
    missing = {
        file: names - functions(ROOT / file)
        for file, names in listed.items()
        if not (ROOT / file).is_file() or names - functions(ROOT / file)
    }
    assert missing == {}


def test_the_path_is_short() -> None:
    path = steps()
    assert 0 < len(path) <= MOST_FILES
    assert path.keys() & BESIDE == set()
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
    listed = steps().keys() | BESIDE
    assert during - listed - DATA - BACKGROUND == set()
    ours = {file for file in listed if file.startswith(("orchestrator/", "policies/"))}
    assert ours - during - {"orchestrator/http/app.py"} == set()
