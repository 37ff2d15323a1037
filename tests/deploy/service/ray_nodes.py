"""Several Ray nodes on this machine, in a process of their own that follows commands.

A process of its own, because Ray reads its environment (HAProxy or not, tokens, intervals) when it
is imported. One JSON command a line comes in, one answer goes out:

    {"add": {LABELS}}    another node with these labels, and its number
    {"add_apart": [FILE, LABELS]}    the same in the network namespace of that file
    {"find": PID}        the number of the node where a process runs
    {"count": NUMBER}    how many processes of that node run
    {"kill": NUMBER}     every process of that node at once, as when a machine is lost

The end of the input ends everything that was started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import psutil

OBJECTS_BYTES = 80 << 20
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def main(temp_dir: str, dashboard_port: int) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Ray prints is no answer
    from ray.cluster_utils import Cluster

    nodes: list[Any] = []
    cluster = Cluster()

    def add(labels: dict[str, str], **more: Any) -> int:
        # Few, because Ray starts a process for each beforehand; replicas take a fifth of one.
        resources = {"num_cpus": 2, "object_store_memory": OBJECTS_BYTES, "labels": labels}
        for last in (False, False, True):
            before = descendants()
            try:
                nodes.append(cluster.add_node(**resources, **more))
            except Exception:  # Ray gives a node half a minute, on a busy machine too
                kill_all(descendants() - before)
                if last or not nodes:  # without the first node there is nothing to add to
                    raise
            else:
                break
        return len(nodes) - 1

    def descendants(pid: int | None = None) -> set[int]:
        with suppress(psutil.NoSuchProcess):
            return {one.pid for one in psutil.Process(pid).children(recursive=True)}
        return set()

    def kill_all(pids: set[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def add_apart(where: tuple[str, dict[str, str]]) -> int:
        """What a thread starts is in the network namespace that the thread is in."""
        network, labels = where
        with open("/proc/thread-self/ns/net") as home:
            enter(network)
            try:
                return add(labels)
            finally:
                enter(f"/proc/self/fd/{home.fileno()}")

    def enter(network: str) -> None:
        with open(network) as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns", network)

    def processes(number: int) -> set[int]:
        raylet = nodes[number].all_processes["raylet"][0].process.pid
        return {raylet, *descendants(raylet)}

    def find(pid: int) -> int:
        return next(number for number in range(len(nodes)) if pid in processes(number))

    def count(number: int) -> int:
        raylet = nodes[number].all_processes["raylet"][0].process
        return 0 if raylet.poll() is not None else len(processes(number))

    def kill(number: int) -> int:
        pids = processes(number)
        kill_all(pids)
        return len(pids)

    commands = {"add": add, "add_apart": add_apart, "find": find, "count": count, "kill": kill}
    try:
        add(
            {"pool": "head"},
            temp_dir=temp_dir,
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=dashboard_port,
            # A lost node is given up after seconds, not after half a minute.
            _system_config={
                "health_check_initial_delay_ms": 1000,
                "health_check_period_ms": 500,
                "health_check_timeout_ms": 4000,
                "health_check_failure_threshold": 3,
            },
        )
        print(json.dumps(cluster.address), file=answers)
        for line in sys.stdin:
            for command, argument in json.loads(line).items():
                result = commands[command](argument)
                print(json.dumps(result), file=answers)
    finally:
        kill_all(descendants())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
