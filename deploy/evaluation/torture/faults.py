"""Processes killed and stopped under streams: no answer is lost, none differs without saying so.

A proxy holds its clients' connections, so those that it had end with it. One that is killed or
stopped may lose what it carries, and nothing else; afterwards the service answers as before.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from deploy.evaluation.torture.attack import (
    MODEL,
    AttackedService,
    Reply,
    ScenarioOutcome,
    ask,
    until_ready,
)

MODELS: Final = (MODEL, "specreason")


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """A process of a kind is killed, or stopped for so many seconds."""

    kind: str
    stopped_s: float | None = None

    def __str__(self) -> str:
        how = "killed" if self.stopped_s is None else f"stopped {self.stopped_s:g} s"
        return f"{self.kind} {how}"


KINDS: Final = ("SmallWorker", "LargeWorker", "Orchestrator", "ServeController", "ProxyActor")
FAULTS: Final = tuple(
    ProcessFault(kind, stopped_s) for stopped_s in (None, 10.0, 60.0) for kind in KINDS
)
"""Every kind killed, then stopped for 10 s and for 60 s; more faults begin again."""


class OwnProcesses:
    """The processes that this one started: those of its Ray, and what these started."""

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to the first process of a kind, and return what sends it another.

        Raises:
            LookupError: there is none.
        """
        for pid in sorted(_descendants()):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if line.startswith(b"ray::") and kind.encode() in line:
                    os.kill(pid, sign)
                    return partial(_signal_again, pid)
        raise LookupError(kind)

    def levels(self) -> Mapping[str, float]:
        """What all of them hold: memory in MiB, descriptors, threads."""
        memory = descriptors = threads = 0.0
        for pid in _descendants():
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                memory += float(fields.get("VmRSS", "0").split()[0]) / 1024
                threads += int(fields["Threads"])
                descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        return {"MiB": memory, "descriptors": descriptors, "threads": threads}


def _descendants() -> set[int]:
    from deploy.service.cluster import descendants  # it imports ray, which reads the environment

    return descendants(os.getpid())


def _signal_again(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it was taken for dead, and replaced
        os.kill(pid, sign)


async def faults(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """So many faults, one after the other, each under streams of two policies."""
    assert target.processes is not None
    said = {model: await ask(target, http, model=model) for model in MODELS}
    # Kills and stops in turn, whatever the number: a few of them are of every kind.
    order = sorted(FAULTS[: len(KINDS) * 2], key=lambda _: chance.random())
    order += FAULTS[len(KINDS) * 2 :]
    for fault in (order[n % len(order)] for n in range(number)):
        await _fault(target, http, outcome, fault, said)
        await until_ready(http, outcome)


async def _fault(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    fault: ProcessFault,
    said: dict[str, Reply],
) -> None:
    assert target.processes is not None
    running = streams(target, http, outcome, said, str(fault), fault.kind == "ProxyActor")
    await asyncio.sleep(0.2)
    sign = signal.SIGKILL if fault.stopped_s is None else signal.SIGSTOP
    try:
        again = target.processes.signal(fault.kind, sign)
    except LookupError:
        outcome.seen[f"no {fault.kind}"] += 1
    else:
        outcome.seen[str(fault)] += 1
        if fault.stopped_s is not None:
            await asyncio.sleep(fault.stopped_s)
            again(signal.SIGCONT)
    await running


def streams(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    said: dict[str, Reply],
    during: str,
    may_be_cut: bool = False,
) -> Awaitable[object]:
    """Requests that run while something fails; each is to be answered as when nothing does."""

    async def one(model: str) -> None:
        reply = await ask(target, http, model=model)
        outcome.count(reply)
        if reply.kind == "200":
            if reply.text != said[model].text and not reply.degraded:
                outcome.broken.append(f"{during}: {model}: another answer that does not say why")
        elif not may_be_cut or reply.kind not in ("lost", "503"):
            outcome.broken.append(f"{during}: {model}: {reply.kind} {reply.text[:80]}")

    return asyncio.gather(*(one(model) for model in MODELS * 2))
