"""Processes killed and stopped under requests: no answer is lost, none differs without saying so.

A proxy holds its clients' connections, so those that it had end with it. One that is killed or
stopped may lose what it carries, and nothing else; a stream that its orchestrator began ends with
that orchestrator, by an error event. Afterwards the service answers as before.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deploy.lab.torture.attack import MODEL, QUESTION, Attack, Reply, ScenarioOutcome
from policies import POLICIES

MODELS: Final = (MODEL, "specreason")
QUESTIONS: Final = (QUESTION, "37 * 46 + 12", "Mia has 6 bags with 17 marbles each. How many?")
SEED: Final = 1  # of what is drawn
BEFORE_S: Final = 1.0  # within which a fault comes after the first requests
TAKEN_FOR_DEAD_S: Final = 60.0  # Serve replaces what is stopped for so long


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """A process of a kind is killed, or stopped for so many seconds."""

    kind: str
    stopped_s: float | None = None

    def __str__(self) -> str:
        how = "killed" if self.stopped_s is None else f"stopped {self.stopped_s:g} s"
        return f"{self.kind} {how}"


KINDS: Final = ("SmallWorker", "LargeWorker", "Orchestrator", "ServeController", "ProxyActor")
STEADY_KINDS: Final = (*KINDS, "Store", "redis-server")  # whose memory is looked at apart
FAULTS: Final = tuple(
    ProcessFault(kind, stopped_s) for stopped_s in (None, 10.0, 60.0) for kind in KINDS
)
"""Every kind killed, stopped for 10 s and for 60 s."""


class OwnProcesses:
    """The processes that this one started: those of its Ray, and what these started."""

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to the first process of a kind, and return what sends it another.

        Raises:
            LookupError: there is none.
        """
        pid = first_process(kind)
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            raise LookupError(kind) from None  # it ended since
        return partial(_signal_again, pid)

    def levels(self) -> Mapping[str, float]:
        """What they hold: memory in MiB, of all and of each kind, descriptors, threads; and how
        many files Ray's session has."""
        levels = defaultdict[str, float](float)
        for pid in _descendants():
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                memory = float(fields.get("VmRSS", "0").split()[0]) / 1024
                levels["MiB"] += memory
                levels["threads"] += int(fields["Threads"])
                levels["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if kind := next((one for one in STEADY_KINDS if one.encode() in line), None):
                    levels[f"MiB of {kind}"] += memory
        levels["files"] = sum(len(files) for _, _, files in os.walk(_session()))
        return levels


def first_process(kind: str) -> int:
    """The oldest process of a kind among those that this one started.

    Raises:
        LookupError: there is none.
    """
    for pid in sorted(_descendants()):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if line.startswith(b"ray::") and kind.encode() in line:
                return pid
    raise LookupError(kind)


def _descendants() -> set[int]:
    from deploy.launch.cluster import descendants  # it imports ray, which reads the environment

    return descendants(os.getpid())


def _session() -> Path:
    """The folder of the session of this process's Ray."""
    import ray

    context = ray.get_runtime_context()
    return Path(str(context.get_temp_dir()), str(context.get_session_name()))


def _signal_again(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it was taken for dead, and replaced
        os.kill(pid, sign)


async def faults(attack: Attack) -> None:
    """So many faults, one after the other, each under requests to every policy."""
    said = {
        (policy, question): await attack.ask(question, model=policy, seed=SEED)
        for policy in POLICIES
        for question in QUESTIONS
    }
    for number, fault in enumerate(_order(attack)):
        await _fault(attack, fault, number, said)
        await attack.until_ready()
        broken = attack.outcome.broken
        last = f", the last: {broken[-1]}" if broken else ""
        attack.say(f"{number + 1} of {attack.number} faults, {len(broken)} broken{last}")


def _order(attack: Attack) -> list[ProcessFault]:
    """Kills and short stops of every kind first; of the later ones every tenth is a long stop."""
    short, long = FAULTS[: len(KINDS) * 2], FAULTS[len(KINDS) * 2 :]
    order = [*attack.chance.sample(short, len(short)), *long]
    while len(order) < attack.number:
        n = len(order) // 10 % len(long)
        order += [*attack.chance.sample(short, len(short))[:9], long[n]]
    return order[: attack.number]


async def _fault(
    attack: Attack, fault: ProcessFault, number: int, said: dict[tuple[str, str], Reply]
) -> None:
    """One fault, while a client of each policy asks one question after the other: every second one
    for streams."""
    processes, outcome = attack.target.processes, attack.outcome
    assert processes is not None

    async def client(policy: str, streamed: bool) -> None:
        ask = attack.stream if streamed else attack.ask
        excused = _excused(fault, streamed)
        for question in QUESTIONS:
            reply = await ask(question, model=policy, seed=SEED)
            outcome.count(reply, "stream" if streamed else "")
            expected = said[policy, question].text
            _judge(outcome, f"{fault}: {policy}", reply, expected, excused)

    running = asyncio.gather(
        *(client(policy, (n + number) % 2 == 0) for n, policy in enumerate(POLICIES))
    )
    await asyncio.sleep(BEFORE_S * attack.chance.random())
    sign = signal.SIGKILL if fault.stopped_s is None else signal.SIGSTOP
    try:
        again = processes.signal(fault.kind, sign)
    except LookupError:
        outcome.seen[f"no {fault.kind}"] += 1
    else:
        outcome.seen[str(fault)] += 1
        if fault.stopped_s is not None:
            try:
                await asyncio.sleep(fault.stopped_s)
            finally:
                again(signal.SIGCONT)
    await running


def _excused(fault: ProcessFault, streamed: bool) -> Sequence[str]:
    """How an answer may end where the process that holds it is gone."""
    if fault.kind == "ProxyActor":
        return ("lost", "cut", "503")
    gone = fault.stopped_s is None or fault.stopped_s >= TAKEN_FOR_DEAD_S
    return ("cut",) if fault.kind == "Orchestrator" and streamed and gone else ()


def _judge(
    outcome: ScenarioOutcome, what: str, reply: Reply, expected: str | None, excused: Sequence[str]
) -> None:
    """Whether a reply is the expected text (None: any), says why not, or ends as it may."""
    if reply.kind == "200":
        if expected is not None and reply.text != expected and not reply.degraded:
            outcome.broken.append(f"{what}: another answer that does not say why")
    elif reply.kind not in excused:
        outcome.broken.append(f"{what}: {reply.kind} {reply.text[:80]}")


def streams(
    attack: Attack, said: dict[str, Reply], during: str, refusals: Sequence[str] = ()
) -> asyncio.Future[list[None]]:
    """Requests that run while something fails; each is to be answered as when nothing does, or
    ends in one of the `refusals`."""

    outcome = attack.outcome

    async def one(model: str) -> None:
        reply = await attack.ask(model=model)
        outcome.count(reply)
        _judge(outcome, f"{during}: {model}", reply, said[model].text, refusals)

    return asyncio.gather(*(one(model) for model in MODELS * 2))
