"""A cluster of several Ray nodes on this machine, and `serve deploy` on it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import yaml

from tests.deploy.conftest import ROOT, alive, commands, free_port

KEY = "sk-plugh-0123456789"
OBSERVER_KEY = "sk-xyzzy-0123456789"
ADMIN_KEY = "sk-frotz-0123456789"


def samples(text: str) -> dict[str, float]:
    """Every sample of a Prometheus text, by its name and labels as they stand there."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


class Nodes:
    """Ray nodes on this machine, and `serve deploy` on them."""

    def __init__(self, folder: Path, *, haproxy: bool) -> None:
        self.folder, self.port, self._api = folder, free_port(), free_port()
        self.url, self._token = f"http://127.0.0.1:{self.port}", secrets.token_hex(32)
        (folder / "ray").mkdir()  # where Ray notes which cluster is the machine's
        self._env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": str(folder),  # other Rays of this machine stay undisturbed
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_SERVE_LOG_TO_STDERR": "0",
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
            "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
            "RAY_metrics_report_interval_ms": "500",
            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{self._api}",
            "OMP_NUM_THREADS": "1",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",  # the client decides
            # A test before this one may have asked for a Ray of one node (`prepare`).
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "BATON_KEYS": KEY,
            "BATON_OBSERVER_KEYS": OBSERVER_KEY,
            "BATON_ADMIN_KEY": ADMIN_KEY,
        }
        if haproxy:
            self._env |= {
                "RAY_SERVE_ENABLE_HA_PROXY": "1",
                "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "600",  # as long as an answer may take
                "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
                "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
                "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
                "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
                "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
                "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
            }
        # Ray gives a node half a minute to start, on a busy machine too.
        for _ in range(3):
            self._host = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.deploy.service.ray_nodes",
                    str(folder),
                    str(self._api),
                ],
                cwd=ROOT,
                env=self._env,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / "nodes.log").open("w"),
            )
            assert self._host.stdout is not None
            if self._host.stdout.readline():
                return
            self._host.wait()
        raise AssertionError((folder / "nodes.log").read_text()[-3000:])

    def add(self, **labels: str) -> int:
        """Another node."""
        return int(self._tell(add=labels))

    def add_apart(self, network: Path, **labels: str) -> int:
        """Another node, in a network namespace."""
        return int(self._tell(add_apart=[str(network), labels]))

    def lives(self, number: int) -> bool:
        """Whether a process of that node runs."""
        return bool(self._tell(count=number))

    def kill(self, number: int) -> None:
        assert self._tell(kill=number) > 1

    def deploy(self, data: dict[str, Any]) -> None:
        """`serve deploy`, and then until it is healthy and ready."""
        file = self.folder / "deployment.yaml"
        file.write_text(yaml.safe_dump(data))
        self.serve("deploy", str(file))

    def serve(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("serve")), *words]
        done = subprocess.run(command, env=self._env, cwd=ROOT, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait(self, seconds: float = 600.0) -> None:
        """Until Serve says that everything runs, and the service that it is ready."""
        end = time.monotonic() + seconds
        while True:
            status = self.application()
            if status["status"] == "RUNNING" and self._ready():
                return
            assert time.monotonic() < end, status
            time.sleep(0.3)

    def application(self) -> dict[str, Any]:
        """What Serve says of the application, replica by replica."""
        response = httpx.get(
            f"http://127.0.0.1:{self._api}/api/serve/applications/",
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=120,
        )
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()["applications"].get("baton", {"status": "NONE"})
        return found

    def replicas(self, deployment: str) -> list[dict[str, Any]]:
        """The running replicas of a deployment."""
        found = self.application().get("deployments", {}).get(deployment, {"replicas": []})
        return [one for one in found["replicas"] if one["state"] == "RUNNING"]

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=600
        )

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics."""
        return samples(self.get("/metrics").text)

    def get(self, path: str) -> httpx.Response:
        """What the service answers to somebody with an observer's key.

        Raises:
            httpx.HTTPError: nothing, or an error.
        """
        headers = {"Authorization": f"Bearer {OBSERVER_KEY}"}
        return httpx.get(self.url + path, headers=headers, timeout=120).raise_for_status()

    def exported(self) -> str:
        """What Ray's metrics ports show, all nodes together; a lost one stays listed a while."""
        found = json.loads((self.folder / "prom_metrics_service_discovery.json").read_text())
        ports = {target for group in found for target in group["targets"]}
        text = ""
        for port in ports:
            with suppress(httpx.ConnectError):
                text += httpx.get(f"http://{port}/metrics", timeout=120).text
        return text

    def pids(self, deployment: str) -> set[int]:
        """The processes of a deployment's running replicas."""
        return {one["pid"] for one in self.replicas(deployment)}

    def number(self, pid: int) -> int:
        """Which node a process runs on."""
        return int(self._tell(find=pid))

    def processes(self) -> dict[int, str]:
        return commands(self._host.pid)

    def close(self) -> None:
        started = self.processes()
        assert self._host.stdin is not None
        self._host.stdin.close()
        self._host.wait(60)
        for pid in alive(started):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def _ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/ready", timeout=10.0).status_code == 200
        return False

    def _tell(self, **command: Any) -> Any:
        assert self._host.stdin is not None
        self._host.stdin.write(json.dumps(command) + "\n")
        self._host.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._host.stdout is not None
        line = self._host.stdout.readline()
        assert line, (self.folder / "nodes.log").read_text()[-3000:]
        return json.loads(line)
