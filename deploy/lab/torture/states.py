"""Bad states of what a service runs on, under streams: answers stay whole, and it finds back."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Final

from deploy.lab.torture.attack import HANG_S, LOST, Attack, BadStates, Reply
from deploy.lab.torture.faults import MODELS, streams

STATE_S: Final = 5.0  # that a state lasts


async def bad_states(attack: Attack) -> None:
    """So many bad states, one after the other, of what the scenario is named for."""
    outcome = attack.outcome
    what = attack.target.states[outcome.scenario]
    said = {model: await attack.ask(model=model) for model in MODELS}
    for state in (what.states[n % len(what.states)] for n in range(attack.number)):
        during = f"{outcome.scenario} {state}"
        if not await _lasted(attack, what, state, during, said):
            outcome.broken.append(f"{during}: there was no {state} for {HANG_S:g} s")
            continue
        await attack.until_ready()
        if not await _follows_again(attack):
            outcome.broken.append(f"after {during}: without its store for {HANG_S:g} s")
        await streams(attack, said, f"after {during}")


async def _lasted(
    attack: Attack, what: BadStates, state: str, during: str, said: dict[str, Reply]
) -> bool:
    """Whether the state came about, under streams; it is over in any case."""
    running = streams(attack, said, during, what.refusals)
    try:
        if not await _begun(what, state):
            await running
            return False
        attack.outcome.seen[during] += 1
        try:
            await asyncio.sleep(STATE_S)
            later = streams(attack, said, f"{during}, later", what.refusals)
            await asyncio.gather(running, later)
        finally:
            await asyncio.to_thread(what.end, state)
    finally:
        running.cancel()
    return True


async def _begun(what: BadStates, state: str) -> bool:
    """Whether the state began: a process that is being replaced is waited for, `HANG_S` seconds."""
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        with suppress(LookupError):
            await asyncio.to_thread(what.begin, state)
            return True
        await asyncio.sleep(0.5)
    return False


async def _follows_again(attack: Attack) -> bool:
    """Whether the service has its store again, within `HANG_S` seconds."""
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        # While a replica is being replaced, what answers may be none of Baton's.
        with suppress(*LOST, ValueError, KeyError, TypeError):
            async with attack.http.get(attack.at("/ready")) as reply:
                degraded = json.loads(await reply.read())["degraded"]
            if degraded is False:
                return True
        await asyncio.sleep(0.5)
    return False
