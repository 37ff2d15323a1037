"""More requests than places.

The times of answers are judged here, so the machine must be idle otherwise.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from deploy.evaluation.intervals import quantile
from deploy.lab.torture.attack import Attack, Reply, ScenarioOutcome

ADMITTED_SLOWER: Final = 3.0  # most p95 at four times the capacity, relative to that at capacity
GOODPUT: Final = 0.9  # least share of the most answers a second
TRIES: Final = 3  # of one request, as many as OpenAI's clients make
COME_AGAIN: Final = 0.9  # least share answered of the refused that come again as asked
STEP_S: Final = 5.0  # at each concurrency, to find the capacity
WARM_S: Final = 1.0  # before it, in which the places fill
CONCURRENT: Final = (1, 2, 4, 8, 16, 32)


async def overload(attack: Attack) -> None:
    """Many requests at once: each gets the right answer or a time to come again.

    Those that come again, twice at most, are answered then.
    """
    outcome, said = attack.outcome, await attack.ask()
    refused, in_vain = 0, 0

    async def one() -> None:
        nonlocal refused, in_vain
        for number in range(1, TRIES + 1):
            reply = await attack.ask()
            outcome.count(reply, f"try {number}")
            _check(outcome, reply, said)
            if reply.kind not in ("429", "503"):
                return
            refused += number == 1
            if number < TRIES:
                await asyncio.sleep(reply.retry_after)
        in_vain += 1

    await asyncio.gather(*(one() for _ in range(attack.number)))
    if refused - in_vain < COME_AGAIN * refused:
        outcome.broken.append(f"{in_vain} of {refused} that were refused came again in vain")


def _check(outcome: ScenarioOutcome, reply: Reply, said: Reply) -> None:
    if reply.kind == "200":
        if reply.text != said.text:
            outcome.broken.append(f"another answer: {reply.text[:80]!r}")
    elif reply.kind not in ("429", "503") or reply.retry_after < 1:
        outcome.broken.append(f"{reply.kind} with Retry-After {reply.retry_after}")


async def capacity(attack: Attack) -> None:
    """Four times the capacity for some seconds: goodput and the times of the admitted hold."""
    outcome, number = attack.outcome, attack.number
    said = await attack.ask()
    most, usual = 0.0, 0.0
    for concurrent in CONCURRENT:
        done = await _at_once(attack, concurrent)
        if len(done) / STEP_S > most:
            most, usual = len(done) / STEP_S, quantile(done, 0.95)
    outcome.seen[f"capacity {most:.1f} answers a second, p95 {usual:.2f} s"] = 1
    if not most:
        outcome.broken.append("no request was answered")
        return
    times, within, due = list[float](), 0, time.monotonic()
    until = due + number

    async def one() -> None:
        nonlocal within
        reply = await attack.ask()
        outcome.count(reply)
        _check(outcome, reply, said)
        if reply.kind == "200":
            within += time.monotonic() < until
            times.append(reply.seconds)

    async with asyncio.TaskGroup() as asked:
        while due < until:
            asked.create_task(one())
            due += attack.chance.expovariate(4 * most)  # whether or not this one was late
            await asyncio.sleep(due - time.monotonic())
    goodput, slow = within / number, quantile(times, 0.95)
    outcome.seen[f"goodput {goodput / most:.0%}, p95 {slow:.2f} s"] = 1
    if goodput < GOODPUT * most:
        outcome.broken.append(f"goodput is {goodput / most:.0%} of the most")
    if slow > ADMITTED_SLOWER * usual:
        outcome.broken.append(f"p95 of the admitted is {slow / usual:.1f} times the usual")


async def _at_once(attack: Attack, concurrent: int) -> list[float]:
    """Seconds of the answers within `STEP_S` to clients that ask again at once.

    Earlier and later answers do not count: with as many clients as answers a second they would add
    a second's worth.
    """
    times, since = list[float](), time.monotonic() + WARM_S
    until = since + STEP_S

    async def client() -> None:
        while time.monotonic() < until:
            reply = await attack.ask()
            if reply.kind != "200":
                await asyncio.sleep(0.1)
            elif since <= time.monotonic() < until:
                times.append(reply.seconds)

    await asyncio.gather(*(client() for _ in range(concurrent)))
    return times
