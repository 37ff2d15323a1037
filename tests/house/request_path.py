"""Which files one request runs through, from HTTP to logits and back.

    python -m tests.house.request_path [ROOT]

The embedded pair answers a question in this process: a real HTTP server, the replica's server and
client with an in-process stand-in for Serve's handle between them, the engine and its thread.
After a first request that warms everything up, a second one is traced: every file of ours in which
a function ran counts, start-up and background tasks of other requests excluded. ROOT is another
checkout, whose modules are found by what they define.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import sys
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn

PACKAGES = ("orchestrator", "policies", "workers", "deploy")
QUESTION = "What is 37*46+12?"


class Tracer:
    """Collects the functions of ours that run while it is switched on, in all threads."""

    def __init__(self, root: Path) -> None:
        self.root, self.on = f"{root}/", False
        self.called: dict[str, dict[str, int]] = defaultdict(dict)
        self._calls = 0

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self.root) and "<" not in code.co_name:
            name = code.co_filename.removeprefix(self.root)
            if name.startswith(PACKAGES):
                self._calls += 1
                self.called[name].setdefault(code.co_qualname, self._calls)


class Handle:
    """A Serve handle on one replica in this process."""

    def __init__(self, replica: Any, method: str = "") -> None:
        self._replica, self._method = replica, method

    def options(self, *, method_name: str = "", **_: Any) -> Handle:
        return Handle(self._replica, method_name or self._method)

    def remote(self, *args: Any) -> Any:
        return Response(getattr(self._replica, self._method)(*args))


class Response:
    """What a call of a handle returns: one answer to await, or a stream."""

    def __init__(self, made: Any) -> None:
        self._made = asyncio.ensure_future(made) if asyncio.iscoroutine(made) else made

    def __await__(self) -> Any:
        return self._made.__await__()

    async def __anext__(self) -> Any:
        return await anext(self._made)

    def __aiter__(self) -> Response:
        return self

    def cancel(self) -> None:
        if isinstance(self._made, asyncio.Future):
            self._made.cancel()
        else:
            self._closing = asyncio.ensure_future(self._made.aclose())


def defined(root: Path, *names: str) -> Any:
    """The class or function that one of the files under `root` defines under one of these names."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef)
                if is_definition and node.name in names:
                    module = ".".join(path.relative_to(root).with_suffix("").parts)
                    return getattr(importlib.import_module(module), node.name)
    raise LookupError(f"{root}: nothing is named {' or '.join(names)}")


def traced(root: Path) -> dict[str, dict[str, int]]:
    """Functions by file, in the order of their first call, that one `specreason` request runs."""
    tracer = Tracer(root)
    threading.setprofile(tracer)  # for threads that start from here on: engines and the server
    from_checkpoint = next(
        importlib.import_module(module).load
        for module in ("workers.engine.loading", "workers.loading")
        if (root / Path(*module.split("."))).with_suffix(".py").is_file()
    )
    replica = defined(root, "ReplicaServer", "WorkerReplica")
    client = defined(root, "ReplicaWorker")
    workers = {
        name: client(Handle(replica(partial(from_checkpoint, f"embedded:{name}"))))
        for name in ("small", "large")
    }
    policies = importlib.import_module("policies").POLICIES
    service = defined(root, "Service")(
        policies=policies, workers=workers, default_policy="specreason"
    )
    app = defined(root, "create_app")(service)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        for again in (False, True):
            tracer.on = again
            answer = httpx.post(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                json={"model": "specreason", "messages": [{"role": "user", "content": QUESTION}]},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
        tracer.on = False
    finally:
        server.should_exit = True
        thread.join()
    return tracer.called


def main(root: str = ".") -> None:
    place = Path(root).resolve()
    sys.path.insert(0, str(place))
    called = traced(place)
    lines = {name: len((place / name).read_text(encoding="utf-8").splitlines()) for name in called}
    for name in sorted(called, key=lambda name: min(called[name].values())):
        print(f"{lines[name]:5}  {name}")
    print(f"{sum(lines.values()):5}  lines in {len(lines)} files")
    print(json.dumps({"files": len(lines), "lines": sum(lines.values())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
