"""Every client and tool against a service, as a table.

    python -m tests.clients.run [--url URL] [--model MODEL] [--only NAME,...] [--out FILE]
        [--checks CAPABILITY,...] [--timeout SECONDS]

Without a URL it serves the embedded pair. With `--checks` the tools are left out, and the table has
these columns alone: what one pair cannot show (calls of tools) is asked of another. Each client and
tool has an environment of its own under build/clients; the versions that it names are pinned, and
what they need is as it was on `PINNED`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from deploy.lab.processes import ROOT, ServerCommand, free_port, running
from tests.clients.tools import TOOLS, Tool, write_tasks

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "clients"
PINNED = "2026-11-20T00:00:00Z"
CAPABILITIES = ("chat", "stream", "reasoning", "structured", "tools", "history")
CLIENT_S, TOOL_S = 600, 900


@dataclass(frozen=True, slots=True)
class Row:
    """A client: of each capability, nothing where it works, or why it does not."""

    name: str
    version: str
    why: dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a running service; default: the embedded pair, served here")
    parser.add_argument("--model", default="baton", help="the model that clients ask")
    parser.add_argument("--only", default="", help="beginnings of names, with commas between")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "clients.md")
    parser.add_argument("--checks", default="", help="capabilities, with commas between")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for each capability")
    given = parser.parse_args()
    checks = [name for name in given.checks.split(",") if name]
    if unknown := set(checks) - set(CAPABILITIES):
        parser.error(f"--checks: expected some of {', '.join(CAPABILITIES)}, not {unknown.pop()!r}")
    wanted = [name for name in given.only.split(",") if name]

    def is_wanted(name: str) -> bool:
        return not wanted or any(name.startswith(one) for one in wanted)

    with serving(given.url) as url:
        env = os.environ | {"BATON_URL": url, "BATON_MODEL": given.model}
        env |= {"BATON_TIMEOUT_S": str(given.timeout)}
        env |= {"BATON_CHECKS": ",".join(checks)} if checks else {}
        env |= {"UV_CACHE_DIR": str(BUILD / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
        rows = [
            _shown(python_client(path, env))
            for path in sorted((HERE / "python").glob("*_client.py"))
            if is_wanted(path.stem.removesuffix("_client"))
        ]
        rows += [
            _shown(node_client(path.parent, env))
            for path in sorted((HERE / "node").glob("*/package.json"))
            if is_wanted(f"node-{path.parent.name}")
        ]
        tools = [] if checks else [tool for tool in TOOLS if is_wanted(tool.name)]
        results = [(tool, run_tool(tool, url, env)) for tool in tools]
    for tool, why in results:
        print(f"{tool.name}: {why or 'runs through'}")
    if checks or not wanted:
        text = table(rows, results, given.model, checks or CAPABILITIES)
        given.out.write_text(text, encoding="utf-8")


@contextmanager
def serving(url: str | None) -> Iterator[str]:
    """A service: that one, or the embedded pair on a free port."""
    if url is not None:
        yield url.rstrip("/")
        return
    port = free_port()
    command = [sys.executable, "-m", "deploy.cli.main", "serve", "--port", str(port)]
    how = ServerCommand(command, port, ready="/ready")
    with running(how, BUILD / "service.log") as server:
        yield server.url


def python_client(script: Path, env: dict[str, str]) -> Row:
    """A script's capabilities, in the environment that its own header describes."""
    text = script.read_text(encoding="utf-8")
    (named,) = re.findall(r'^"""(.*)"""$', text, flags=re.MULTILINE)
    (version,) = re.findall(r'^# dependencies = \["[^"=]+==([^"]+)"', text, flags=re.MULTILINE)
    command = [*_uv("run"), "--exclude-newer", PINNED, "--script", script.name]
    return Row(named.rstrip("."), version, _capabilities(command, script.parent, env))


def node_client(folder: Path, env: dict[str, str]) -> Row:
    """The same of a package in JavaScript, installed beside a copy of its script."""
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    home = BUILD / "node"
    shutil.copytree(HERE / "node", home, dirs_exist_ok=True)
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--before", PINNED]
    if shutil.which("npm") is None:
        return Row(package["description"], "", dict.fromkeys(CAPABILITIES, "there is no npm here"))
    subprocess.run(install, cwd=home / folder.name, env=env, timeout=CLIENT_S, check=True)
    version = next(iter(package["dependencies"].values()))
    found = _capabilities(["node", "client.mjs"], home / folder.name, env)
    return Row(package["description"], version, found)


def _capabilities(command: Sequence[str], folder: Path, env: dict[str, str]) -> dict[str, str]:
    done = _run(command, folder, env, CLIENT_S)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"capability"'):
            said: dict[str, Any] = json.loads(line)
            found[said["capability"]] = "" if said["works"] else said["why"] or "no reason given"
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return {name: found.get(name, f"did not run: {last[:200]}") for name in CAPABILITIES}


def run_tool(tool: Tool, url: str, env: dict[str, str]) -> str:
    """Why a tool did not run through; nothing where it did."""
    if not tool.requirements:
        home = ROOT / ".venv-vllm"
        if not (home / "bin" / "python").exists():
            return "needs the environment of `make test-vllm`, which was not there"
    elif _run([*_uv("python"), "find", tool.python], ROOT, env, CLIENT_S).returncode:
        return f"needs Python {tool.python}, which is not here"
    else:
        home = BUILD / "tools" / re.sub(r"\W+", "-", tool.name)
        if failed := _install(tool, home, env):
            return failed
    with tempfile.TemporaryDirectory() as scratch:
        write_tasks(Path(scratch))
        names = {"url": url, "tokenizer": "embedded/large", "tasks": scratch}
        first, *rest = tool.command
        command = [str(home / "bin" / first), *(_filled(part, names) for part in rest)]
        done = _run(command, ROOT / "workers", env, TOOL_S)
    output = done.stdout + done.stderr
    if re.search(tool.done, output):
        return ""
    return f"did not run through: {(output.strip().splitlines() or ['no output'])[-1][:200]}"


def _install(tool: Tool, home: Path, env: dict[str, str]) -> str:
    """Make a tool's environment; why it could not be made."""
    stamp = home / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == repr(tool.requirements):
        return ""
    python = str(home / "bin" / "python")
    torch = [name for name in tool.requirements if name.startswith("torch==")]
    others = [name for name in tool.requirements if name not in torch]
    steps = [[*_uv("venv"), "--clear", "--python", tool.python, str(home)]]
    if torch:  # pip, since the index of whoever runs this decides which build it is
        steps.append([sys.executable, "-m", "pip", "-q", "--python", python, "install", *torch])
    steps.append([*_uv("pip"), "install", "--exclude-newer", PINNED, "--python", python, *others])
    for step in steps:
        done = _run(step, ROOT, env, TOOL_S)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return f"could not be installed: {last.strip()[:200]}"
    stamp.write_text(repr(tool.requirements), encoding="utf-8")
    return ""


def _filled(part: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        part = part.replace("{" + name + "}", value)
    return part


def _uv(command: str) -> list[str]:
    uv = str(BUILD / "bin" / "uv")
    return [uv, command, "--quiet"]


def _run(
    command: Sequence[str], folder: Path, env: dict[str, str], timeout_s: int
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, env=env, timeout=timeout_s, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"nothing after {timeout_s} s")


def _shown(row: Row) -> Row:
    works = [name for name in CAPABILITIES if not row.why[name]]
    print(f"{row.name} {row.version}: {', '.join(works) or 'nothing'}", flush=True)
    return row


def table(
    rows: Sequence[Row],
    results: Sequence[tuple[Tool, str]],
    model: str,
    checks: Sequence[str],
) -> str:
    """The page, or, without results of tools, its table of these checks alone; a reason that
    several clients share stands below the table once."""
    reasons: list[str] = []

    def cell(why: str) -> str:
        if not why:
            return "works"
        why = why.replace(f"{ROOT}/", "")
        if why not in reasons:
            reasons.append(why)
        return f"[{reasons.index(why) + 1}]"

    head = [
        "# Clients and tools",
        "",
        f"Made by `make clients` on {date.today()}, with the model `{model}` of the embedded pair.",
        "Each client is in an environment of its own and asks by its own means. A number stands",
        "for a reason below. The models of the embedded pair cannot call tools; other models may.",
        "",
    ]
    lines = [
        *(head if results else []),
        f"| client | version | {' | '.join(checks)} |",
        f"| --- | --- | {' | '.join('---' for _ in checks)} |",
    ]
    for row in rows:
        cells = " | ".join(cell(row.why[name]) for name in checks)
        lines.append(f"| {row.name} | {row.version} | {cells} |")
    lines += ["", *(f"{number}. {why}" for number, why in enumerate(reasons, 1))]
    if not results:
        return "\n".join(lines) + "\n"
    lines += ["", "Load tools and evaluations, a few requests each, to `large-only`:", ""]
    lines += ["| tool | result |", "| --- | --- |"]
    lines += [f"| {tool.name} | {why or 'runs through'} |" for tool, why in results]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
