"""Load: prompts far too long, more requests than places, one key's flood, a long soak.

How long answers take is judged here, so these want a machine with nothing else to do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from deploy.evaluation.torture.attack import (
    AttackedService,
    Reply,
    ScenarioOutcome,
    ask,
    percentile,
)

SLOWER: Final = 2.0  # a user's p95 beside prompts that are refused, in times of that alone
ADMITTED_SLOWER: Final = 3.0  # p95 of those admitted at four times the capacity
GOODPUT: Final = 0.9  # of the most that was answered in a second
STEADY: Final = 0.05  # by which memory, descriptors and threads may differ
STEP_S: Final = 5.0  # at each concurrency, to find the capacity
CONCURRENT: Final = (1, 2, 4, 8, 16, 32)


async def large(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """Prompts of a megabyte beside a user: they are refused, the user is answered as before."""
    alone = [await ask(target, http) for _ in range(5)]
    said, times = alone[0], list[float]()

    async def refused() -> None:
        reply = await ask(target, http, content="12 + 34 is? " * 80_000)
        outcome.count(reply)
        if reply.kind not in ("400", "413", "429"):
            outcome.broken.append(f"{reply.kind} to a prompt of a megabyte: {reply.text[:80]}")

    flood = asyncio.gather(*(refused() for _ in range(number)))
    while not flood.done():
        reply = await ask(target, http)
        outcome.count(reply, "user")
        times.append(reply.seconds)
        if (reply.kind, reply.text) != (said.kind, said.text):
            outcome.broken.append(f"a user got {reply.kind} {reply.text[:80]!r}")
    await flood
    before = percentile([one.seconds for one in alone], 0.95)
    slower = percentile(times, 0.95) / before if before else 0.0
    outcome.seen[f"user p95 {slower:.1f} times that alone"] = 1
    if len(times) >= 20 and slower > SLOWER:
        outcome.broken.append(f"a user's p95 is {slower:.1f} times that alone")


async def overload(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """So many requests at once: each is answered rightly or told when to come again."""
    said = await ask(target, http)

    async def one() -> None:
        reply = await ask(target, http)
        outcome.count(reply)
        _check(outcome, reply, said)

    await asyncio.gather(*(one() for _ in range(number)))


def _check(outcome: ScenarioOutcome, reply: Reply, said: Reply) -> None:
    if reply.kind == "200":
        if reply.text != said.text:
            outcome.broken.append(f"another answer: {reply.text[:80]!r}")
    elif reply.kind not in ("429", "503") or reply.retry_after < 1:
        outcome.broken.append(f"{reply.kind} with Retry-After {reply.retry_after}")


async def capacity(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """Four times the capacity for so many seconds: goodput and those admitted hold."""
    said = await ask(target, http)
    most, usual = 0.0, 0.0
    for concurrent in CONCURRENT:
        replies = await _closed_loop(target, http, concurrent, STEP_S)
        done = [reply.seconds for reply in replies if reply.kind == "200"]
        if len(done) / STEP_S > most:
            most, usual = len(done) / STEP_S, percentile(done, 0.95)
    outcome.seen[f"capacity {most:.1f} answers a second, p95 {usual:.2f} s"] = 1
    if not most:
        outcome.broken.append("nothing was answered")
        return
    replies, asked = list[Reply](), set[asyncio.Task[None]]()

    async def one() -> None:
        reply = await ask(target, http)
        outcome.count(reply)
        replies.append(reply)
        _check(outcome, reply, said)

    until = time.monotonic() + number
    while time.monotonic() < until:
        task = asyncio.create_task(one())
        asked.add(task)
        task.add_done_callback(asked.discard)
        await asyncio.sleep(chance.expovariate(4 * most))
    within = sum(reply.kind == "200" for reply in replies)
    await asyncio.gather(*asked)
    times = [reply.seconds for reply in replies if reply.kind == "200"]
    goodput, slow = within / number, percentile(times, 0.95)
    outcome.seen[f"goodput {goodput / most:.0%}, p95 {slow:.2f} s"] = 1
    if goodput < GOODPUT * most:
        outcome.broken.append(f"goodput is {goodput / most:.0%} of the most")
    if slow > ADMITTED_SLOWER * usual:
        outcome.broken.append(f"p95 of those admitted is {slow / usual:.1f} times the usual")


async def _closed_loop(
    target: AttackedService,
    http: httpx.AsyncClient,
    concurrent: int,
    seconds: float,
    key: str | None = None,
    seen: Callable[[Reply], None] | None = None,
) -> list[Reply]:
    """What so many clients are answered, each of whom asks again as soon as it is."""
    replies, until = list[Reply](), time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < until:
            reply = await ask(target, http, key=key)
            replies.append(reply)
            if seen is not None:
                seen(reply)
            if reply.kind != "200":  # a client that is refused comes again soon, but not at once
                await asyncio.sleep(0.1)

    await asyncio.gather(*(client() for _ in range(concurrent)))
    return [reply for reply in replies if reply.seconds]


async def flood(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """A key with 64 clients for so many seconds: another with two keeps at least its share."""
    assert target.other_key is not None
    quiet = target.other_key
    alone = sum(reply.kind == "200" for reply in await _closed_loop(target, http, 2, number, quiet))
    loud, beside = await asyncio.gather(
        _closed_loop(target, http, 64, number, seen=lambda reply: outcome.count(reply, "loud")),
        _closed_loop(target, http, 2, number, quiet, lambda reply: outcome.count(reply, "quiet")),
    )
    got, others = (sum(one.kind == "200" for one in replies) for replies in (beside, loud))
    share = min(alone, (got + others) / 2)
    outcome.seen[f"quiet {got} of {alone} alone, loud {others}"] = 1
    if got < GOODPUT * share:
        outcome.broken.append(f"the other key got {got} answers where {share:.0f} are its share")
    if refused := sum(reply.kind != "200" for reply in beside):
        outcome.broken.append(f"the other key was refused {refused} times")


async def soak(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """Mixed traffic for so many seconds: what the processes hold stays as after a sixth of them."""
    assert target.processes is not None
    models = ("large-only", "small-only", "specreason", "bild", "cascade", "best-of-k")
    began, level = time.monotonic(), dict[str, float]()

    async def client() -> None:
        while time.monotonic() < began + number:
            question = f"{chance.randrange(99)} + {chance.randrange(99)}, then twice"
            reply = await ask(target, http, content=question, model=chance.choice(models))
            outcome.count(reply)
            if reply.kind not in ("200", "429"):
                outcome.broken.append(f"{reply.kind} {reply.text[:80]}")
            await asyncio.sleep(chance.random() * 0.2)

    async def note() -> None:
        await asyncio.sleep(number / 6)
        assert target.processes is not None
        level.update(target.processes.levels())

    todo: list[Awaitable[None]] = [client() for _ in range(4)]
    await asyncio.gather(note(), *todo)
    await asyncio.sleep(2)  # what ended is let go
    for name, end in target.processes.levels().items():
        outcome.seen[f"{name} {level[name]:.0f} to {end:.0f}"] = 1
        if end > level[name] * (1 + STEADY):
            outcome.broken.append(f"{name} grew from {level[name]:.0f} to {end:.0f}")
