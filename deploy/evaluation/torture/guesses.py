"""A stranger who guesses at the prompts of somebody else: no better than chance.

Prefix caches make a prompt that begins like one of before cheaper. If a guess could tell that from
somebody else's prompt, by what is said of cached tokens or by the time to the answer, then texts
could be read letter by letter.
"""

from __future__ import annotations

import random
from typing import Final

import httpx
from scipy.stats import binom

from deploy.evaluation.torture.attack import AttackedService, ScenarioOutcome, ask

GUESSES: Final = 10  # a round: the digits
UNLIKELY: Final = 1e-3  # so many right guesses by chance are found out


async def guesses(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """So many guesses, in rounds of ten: a user asks about a digit and a stranger about all ten.

    The stranger takes the guess with the most cached tokens, or the fastest, for the right one.
    With no second key the two are users of one (`user`).
    """
    users = {} if target.other_key is not None else {"user": "stranger"}
    by_tokens = by_time = 0
    rounds = max(1, number // GUESSES)
    for _ in range(rounds):
        about = f"Account {chance.randrange(10**9)}. The first digit of the code is "
        code = chance.randrange(GUESSES)
        rest = f" and the rest is {chance.randrange(10**6)}. What is 1+1?"
        whose = {} if target.other_key is not None else {"user": "victim"}
        asked = await ask(target, http, f"{about}{code}{rest}", max_tokens=1, **whose)
        if asked.kind != "200":
            outcome.broken.append(f"the user got {asked.kind} {asked.text[:80]}")
        digits = list(range(GUESSES))
        chance.shuffle(digits)
        # A guess of its own first: what all ten have in common is then known to be cached.
        await ask(target, http, about, key=target.other_key, max_tokens=1, **users)
        replies = {}
        for digit in digits:
            text = f"{about}{digit}{rest}"
            reply = await ask(target, http, text, key=target.other_key, max_tokens=1, **users)
            outcome.count(reply)
            replies[digit] = reply
        most = max(reply.cached for reply in replies.values())
        by_tokens += chance.choice([d for d in digits if replies[d].cached == most]) == code
        by_time += min(digits, key=lambda digit: replies[digit].seconds) == code
    for what, right in (("cached tokens", by_tokens), ("time", by_time)):
        outcome.seen[f"right by {what} {right} of {rounds}"] = 1
        if binom.sf(right - 1, rounds, 1 / GUESSES) < UNLIKELY:
            outcome.broken.append(f"by {what} a stranger guessed {right} of {rounds} digits")
