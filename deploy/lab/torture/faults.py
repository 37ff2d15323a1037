"""Killed and stopped processes, under requests.

No answer is lost, and none differs without a reason. Two exceptions: a killed or stopped proxy may
lose the requests that it carries, and a stream ends by an error event when its orchestrator dies.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.lab.torture.attack import QUESTION, Attack, Reply
from deploy.lab.torture.own import KINDS
from policies import POLICIES

QUESTIONS: Final = (QUESTION, "37 * 46 + 12", "Mia has 6 bags with 17 marbles each. How many?")
BEFORE_S: Final = 1.0  # most between the first requests and their fault
TAKEN_FOR_DEAD_S: Final = 60.0  # Serve replaces a process that is stopped this long


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """A process of a kind is killed, or stopped for some seconds."""

    kind: str
    stopped_s: float | None = None

    def __str__(self) -> str:
        how = "killed" if self.stopped_s is None else f"stopped {self.stopped_s:g} s"
        return f"{self.kind} {how}"


FAULTS: Final = tuple(
    ProcessFault(kind, stopped_s) for stopped_s in (None, 10.0, 60.0) for kind in KINDS
)


async def faults(attack: Attack) -> None:
    """Faults one after the other in random order, each under requests to every policy."""
    said = {
        (policy, question): await attack.ask(question, model=policy, seed=1)
        for policy in POLICIES
        for question in QUESTIONS
    }
    order = list[ProcessFault]()
    for number in range(attack.number):
        order = order or attack.chance.sample(FAULTS, len(FAULTS))
        await _fault(attack, order.pop(), number, said)
        await attack.until_ready()
        broken = attack.outcome.broken
        last = f", the last: {broken[-1]}" if broken else ""
        attack.say(f"{number + 1} of {attack.number} faults, {len(broken)} broken{last}")


async def _fault(
    attack: Attack, fault: ProcessFault, number: int, said: dict[tuple[str, str], Reply]
) -> None:
    """One fault, while a client of each policy asks the questions, every second one for streams."""
    processes, outcome = attack.target.processes, attack.outcome
    assert processes is not None

    async def client(policy: str, stream: bool) -> None:
        for question in QUESTIONS:
            reply = await attack.ask(question, model=policy, seed=1, stream=stream)
            outcome.count(reply, "stream" if stream else "")
            expected, excused = said[policy, question], _excused(fault, stream)
            _judge(attack, f"{fault}: {policy}", reply, expected, excused)

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


def _excused(fault: ProcessFault, stream: bool) -> Sequence[str]:
    """The kinds of replies that are allowed when the process that holds the request is gone."""
    if fault.kind == "ProxyActor":
        return ("lost", "cut", "503")
    gone = fault.stopped_s is None or fault.stopped_s >= TAKEN_FOR_DEAD_S
    return ("cut",) if fault.kind == "Orchestrator" and stream and gone else ()


def _judge(
    attack: Attack, what: str, reply: Reply, expected: Reply, excused: Sequence[str] = ()
) -> None:
    """Note a reply that is neither the expected text, nor degraded, nor excused."""
    if reply.kind == "200":
        if reply.text != expected.text and not reply.degraded:
            attack.outcome.broken.append(f"{what}: another answer that does not say why")
    elif reply.kind not in excused:
        attack.outcome.broken.append(f"{what}: {reply.kind} {reply.text[:80]}")
