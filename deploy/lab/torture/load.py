"""Load: prompts far too long, reads of metrics and of an experiment's report, more requests than
places, one key's flood, a long soak.

How long answers take is judged here, so these want a machine with nothing else to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from deploy.lab.torture.attack import Attack, Reply, ScenarioOutcome, percentile

SLOWER: Final = 2.0  # a user's p95 beside bursts of something, in times of that alone
ADMITTED_SLOWER: Final = 3.0  # p95 of those admitted at four times the capacity
GOODPUT: Final = 0.9  # of the most that was answered in a second
TRIES: Final = 3  # of one request, as many as OpenAI's clients make
COME_AGAIN: Final = 0.9  # of those that were refused and come again when they are told, answered
LOUD, QUIET = 64, 16  # clients of two keys; either could take half of a service
USERS: Final = 4  # who ask beside bursts
BEFORE_S: Final = 10.0  # for which they ask before
BURSTS, ENOUGH = 20, 100  # bursts, unless users had so many answers before
EVENTS: Final = 50_000  # of an experiment: an exposure and an outcome a request
STEADY: Final = 0.05  # by which memory, descriptors and threads may differ
LEAVING: Final = 0.1  # of the clients of a soak go away during their stream
STEP_S: Final = 5.0  # at each concurrency, to find the capacity
WARM_S: Final = 1.0  # before it, in which the places fill
CONCURRENT: Final = (1, 2, 4, 8, 16, 32)


async def large(attack: Attack) -> None:
    """So many prompts of a megabyte at once, again and again, beside users: they are refused, and
    the users are answered as before."""
    body = attack.body("12 + 34 is? " * 80_000)

    async def refused() -> None:
        reply = await attack.send(body)
        attack.outcome.count(reply)
        if reply.kind not in ("400", "413", "429"):
            told = f"{reply.kind} to a prompt of a megabyte: {reply.text[:80]}"
            attack.outcome.broken.append(told)

    await _beside_users(attack, refused)


async def scrapes(attack: Attack) -> None:
    """So many reads of the metrics at once, again and again, beside users: all are answered."""
    first = await attack.scrape()
    if first.kind in ("401", "403"):
        attack.outcome.broken.append(f"{first.kind} to /metrics: set $BATON_OBSERVER_KEY")
        return

    async def read() -> None:
        reply = await attack.scrape()
        attack.outcome.count(reply, "scrape")
        if reply.kind != "200":
            attack.outcome.broken.append(f"{reply.kind} to /metrics: {reply.text[:80]}")

    await _beside_users(attack, read)


async def reports(attack: Attack) -> None:
    """So many reads of the report of an experiment with 50,000 events at once, again and again,
    beside users: all are answered, over all events."""
    outcome, experiments = attack.outcome, attack.target.experiments
    assert experiments is not None
    path, times = await experiments.start(EVENTS, attack.chance), list[float]()

    async def read() -> None:
        reply = await attack.report(path)
        outcome.count(reply, "report")
        times.append(reply.seconds)
        if (reply.kind, reply.text) != ("200", str(EVENTS // 2)):
            outcome.broken.append(f"{reply.kind} to a report: {reply.text[:80]}")

    await _beside_users(attack, read)
    await experiments.stop()
    first, later = max(times[: attack.number]), max(times[attack.number :], default=0.0)
    outcome.seen[f"reports within {first:.1f} s, later {later:.1f} s"] = 1


async def _beside_users(attack: Attack, one: Callable[[], Awaitable[None]]) -> None:
    """Bursts of something beside users, who are answered as before."""
    outcome = attack.outcome
    said = await attack.ask()
    before = [reply.seconds for reply in await _closed_loop(attack, USERS, BEFORE_S)]
    times, over = list[float](), asyncio.Event()

    async def user() -> None:
        while not over.is_set():
            reply = await attack.ask()
            outcome.count(reply, "user")
            times.append(reply.seconds)
            if (reply.kind, reply.text) != (said.kind, said.text):
                outcome.broken.append(f"a user got {reply.kind} {reply.text[:80]!r}")

    users = asyncio.gather(*(user() for _ in range(USERS)))
    for _ in range(BURSTS):
        await asyncio.gather(*(one() for _ in range(attack.number)))
        if len(times) >= ENOUGH:
            break
    over.set()
    await users
    usual, beside = percentile(before, 0.95), percentile(times, 0.95)
    slower = beside / usual if usual else 0.0
    outcome.seen[f"user p95 {usual:.2f} s alone, {beside:.2f} s beside"] = 1
    if slower > SLOWER:
        outcome.broken.append(f"a user's p95 is {slower:.1f} times that alone")


async def overload(attack: Attack) -> None:
    """So many requests at once: each is answered rightly or told when to come again. Those that do
    so, twice at most as OpenAI's clients do, are answered then."""
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
    """Four times the capacity for so many seconds: goodput and those admitted hold."""
    outcome, number = attack.outcome, attack.number
    said = await attack.ask()
    most, usual = 0.0, 0.0
    for concurrent in CONCURRENT:
        replies = await _closed_loop(attack, concurrent, STEP_S, warm_s=WARM_S)
        done = [reply.seconds for reply in replies if reply.kind == "200"]
        if len(done) / STEP_S > most:
            most, usual = len(done) / STEP_S, percentile(done, 0.95)
    outcome.seen[f"capacity {most:.1f} answers a second, p95 {usual:.2f} s"] = 1
    if not most:
        outcome.broken.append("nothing was answered")
        return
    replies, asked, within = list[Reply](), set[asyncio.Task[None]](), 0
    due = time.monotonic()
    until = due + number

    async def one() -> None:
        nonlocal within
        reply = await attack.ask()
        within += reply.kind == "200" and time.monotonic() < until
        outcome.count(reply)
        replies.append(reply)
        _check(outcome, reply, said)

    while due < until:
        task = asyncio.create_task(one())
        asked.add(task)
        task.add_done_callback(asked.discard)
        due += attack.chance.expovariate(4 * most)  # however late this one was
        await asyncio.sleep(due - time.monotonic())
    await asyncio.gather(*asked)
    times = [reply.seconds for reply in replies if reply.kind == "200"]
    goodput, slow = within / number, percentile(times, 0.95)
    outcome.seen[f"goodput {goodput / most:.0%}, p95 {slow:.2f} s"] = 1
    if goodput < GOODPUT * most:
        outcome.broken.append(f"goodput is {goodput / most:.0%} of the most")
    if slow > ADMITTED_SLOWER * usual:
        outcome.broken.append(f"p95 of those admitted is {slow / usual:.1f} times the usual")


async def _closed_loop(
    attack: Attack,
    concurrent: int,
    seconds: float,
    key: str | None = None,
    seen: Callable[[Reply], None] | None = None,
    warm_s: float = 0.0,
) -> list[Reply]:
    """What so many clients are answered within so many seconds, each of whom asks again as soon as
    it is; `seen` is told of every answer.

    Those that come later are no part of what was done in that time: with as many clients as are
    answered in a second they would add a second's worth. Nor are those of `warm_s` seconds before.
    """
    replies, since = list[Reply](), time.monotonic() + warm_s
    until = since + seconds

    async def client() -> None:
        while time.monotonic() < until:
            reply = await attack.ask(key=key)
            if since <= time.monotonic() < until:
                replies.append(reply)
            if seen is not None:
                seen(reply)
            if reply.kind != "200":  # a client that is refused comes again soon, but not at once
                await asyncio.sleep(0.1)

    await asyncio.gather(*(client() for _ in range(concurrent)))
    return replies


async def flood(attack: Attack) -> None:
    """A key with 64 clients for so many seconds: another with 16 keeps at least its share."""
    outcome, number, quiet = attack.outcome, attack.number, attack.target.other_key
    assert quiet is not None
    replies, refused = await _closed_loop(attack, QUIET, number, quiet), 0
    alone = sum(reply.kind == "200" for reply in replies)

    def told(reply: Reply) -> None:
        nonlocal refused
        outcome.count(reply, "quiet")
        refused += reply.kind != "200"

    loud, beside = await asyncio.gather(
        _closed_loop(attack, LOUD, number, seen=lambda reply: outcome.count(reply, "loud")),
        _closed_loop(attack, QUIET, number, quiet, told),
    )
    got, others = (sum(one.kind == "200" for one in replies) for replies in (beside, loud))
    share = min(alone, (got + others) / 2)
    outcome.seen[f"quiet {got} of {alone} alone, loud {others}"] = 1
    if got < GOODPUT * share:
        outcome.broken.append(f"the other key got {got} answers where {share:.0f} are its share")
    if refused:
        outcome.broken.append(f"the other key was refused {refused} times")


async def soak(attack: Attack) -> None:
    """Mixed traffic for so many seconds: what the processes hold stays as after a sixth of them."""
    outcome, number, chance = attack.outcome, attack.number, attack.chance
    processes = attack.target.processes
    assert processes is not None
    models = ("large-only", "small-only", "specreason", "bild", "cascade")
    began, level = time.monotonic(), dict[str, float]()

    async def client() -> None:
        while time.monotonic() < began + number:
            question = f"{chance.randrange(99)} + {chance.randrange(99)}, then twice"
            model = chance.choice(models)
            if chance.random() < LEAVING:
                await attack.leave(question, model=model)
                outcome.seen["left"] += 1
                continue
            reply = await attack.ask(question, model=model)
            outcome.count(reply)
            if reply.kind not in ("200", "429"):
                outcome.broken.append(f"{reply.kind} {reply.text[:80]}")
            await asyncio.sleep(chance.random() * 0.2)

    async def note() -> None:
        for sixth in range(1, 7):
            await asyncio.sleep(number / 6)
            now = processes.levels()
            if sixth == 1:
                level.update(now)
            held = ", ".join(f"{name} {value:.0f}" for name, value in now.items())
            attack.say(f"{sixth * number // 6} of {number} s: {held}")

    todo: list[Awaitable[None]] = [client() for _ in range(4)]
    await asyncio.gather(note(), *todo)
    await asyncio.sleep(2)  # what ended is let go
    for name, end in processes.levels().items():
        if (start := level.get(name)) is None:  # of a kind that was just being replaced
            outcome.seen[f"{name} unknown to {end:.0f}"] = 1
            continue
        outcome.seen[f"{name} {start:.0f} to {end:.0f}"] = 1
        if end > start * (1 + STEADY):
            outcome.broken.append(f"{name} grew from {start:.0f} to {end:.0f}")
