"""The network between two nodes is cut, for a moment and for longer: no answer is lost or changed.

One node is in a network namespace of its own, behind a cable of which the test holds the other end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import until
from tests.deploy.service.nodes import Nodes
from tests.deploy.service.test_nodes import QUESTIONS, answer, load

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]

HERE, THERE = "10.213.77.1", "10.213.77.2"


class Cable:
    """A network namespace, and the only way into it. Wants root and iproute2."""

    def __init__(self, undo: ExitStack) -> None:
        self._name = f"baton{os.getpid()}"
        self.file = Path("/run/netns", self._name)
        here, self._there = f"ba{os.getpid()}", f"bb{os.getpid()}"
        self._ip("netns", "add", self._name)
        undo.callback(self._ip, "netns", "delete", self._name)
        self._ip("link", "add", here, "type", "veth", "peer", "name", self._there)
        self._ip("link", "set", self._there, "netns", self._name)
        self._ip("address", "add", f"{HERE}/30", "dev", here)
        self._ip("link", "set", here, "up")
        self._inside("address", "add", f"{THERE}/30", "dev", self._there)
        self._inside("link", "set", "lo", "up")
        self.mend()

    def cut(self) -> None:
        """What is sent from now on arrives nowhere, and nobody is told."""
        self._inside("link", "set", self._there, "down")

    def mend(self) -> None:
        self._inside("link", "set", self._there, "up")
        self._inside("route", "replace", "default", "via", HERE)

    def _inside(self, *words: str) -> None:
        self._ip("-netns", self._name, *words)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def cable() -> Iterator[Cable]:
    with ExitStack() as undo:
        try:
            made = Cable(undo)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network of its own on this machine: {error}")
        yield made


@pytest.fixture
def nodes(cable: Cable) -> Iterator[Nodes]:
    """A head without a large model, a node beside it, and one at the end of the cable."""
    folder = Path(tempfile.mkdtemp(prefix="baton-", dir="/tmp"))  # sockets want short paths
    cluster = Nodes(folder, haproxy=False)
    try:
        cluster.add(pool="models")
        cluster.add_apart(cable.file, pool="models")
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def deployment(nodes: Nodes, tiny_file: Path) -> dict[str, Any]:
    """One large worker on each of the two nodes, everything else on the head."""
    data: dict[str, Any] = yaml.safe_load(tiny_file.read_text())
    data["http_options"]["port"] = nodes.port
    args = data["applications"][0]["args"]
    args["auth"] = {"api_keys_env": "BATON_KEYS", "observer_keys_env": "BATON_OBSERVER_KEYS"}
    args["orchestrator"] = {"replicas": 1, "nodes": {"pool": "head"}}
    args["workers"]["small"] |= {"patience_s": 300, "nodes": {"pool": "head"}}
    args["workers"]["large"] |= {
        "replicas": 2,
        "rows": 4,
        "patience_s": 300,
        "nodes": {"pool": "models"},
    }
    data["applications"][0]["deployments"] = [{"name": "LargeWorker", "max_replicas_per_node": 1}]
    return data


async def test_streams_outlive_a_cut_cable(nodes: Nodes, cable: Cable, tiny_file: Path) -> None:
    nodes.deploy(deployment(nodes, tiny_file))
    nodes.wait()
    large = nodes.replicas("LargeWorker")
    assert {one["node_ip"] for one in large} >= {THERE}
    assert len(large) == 2
    questions = QUESTIONS[:6]
    answers = await asyncio.gather(*(answer(nodes, question) for question in questions))
    expected = dict(zip(questions, answers, strict=True))
    over = asyncio.Event()
    running = asyncio.create_task(load(nodes, expected, over, len(questions)))
    await asyncio.sleep(2)
    cable.cut()
    await asyncio.sleep(1)  # within what Ray waits for a node
    cable.mend()
    await asyncio.sleep(5)
    cable.cut()
    # Ray gives the node up, and its replica with it.
    await until(lambda: len(nodes.replicas("LargeWorker")) == 1)
    await asyncio.sleep(5)
    over.set()
    assert await running >= len(questions)
    cable.mend()
    await asyncio.sleep(5)  # what the lost node still has to say changes nothing
    again = await asyncio.gather(*(answer(nodes, question) for question in questions))
    assert again == answers
