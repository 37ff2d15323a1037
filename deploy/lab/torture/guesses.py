"""A stranger who guesses at the prompts of somebody else: no better than chance.

Prefix caches make a prompt that begins like one of before cheaper. If a guess could tell that from
somebody else's prompt, by what is said of cached tokens or by the time to the answer, then texts
could be read letter by letter.
"""

from __future__ import annotations

from typing import Final

from scipy.stats import binom

from deploy.lab.torture.attack import Attack, Reply

GUESSES: Final = 10  # a round: the digits
UNLIKELY: Final = 1e-3  # so many right guesses by chance are found out
LEAST: Final = 4  # rounds: with fewer, all guesses right would not be unlikely enough


async def guesses(attack: Attack) -> None:
    """So many guesses, in rounds of ten: a user asks about a digit and a stranger about all ten.

    The stranger takes the guess with the most cached tokens, or the fastest, for the right one. A
    round with a request that was not answered says nothing of it, and breaks the scenario.
    With no second key the two are users of one (`user`).
    """
    other, chance, outcome = attack.target.other_key, attack.chance, attack.outcome
    users = {} if other is not None else {"user": "stranger"}
    whose = {} if other is not None else {"user": "victim"}
    by_tokens = by_time = rounds = 0
    for _ in range(max(LEAST, attack.number // GUESSES)):
        about = f"Account {chance.randrange(10**9)}. The first digit of the code is "
        code = chance.randrange(GUESSES)
        rest = f" and the rest is {chance.randrange(10**6)}. What is 1+1?"
        asked = await attack.ask(f"{about}{code}{rest}", max_tokens=1, **whose)
        digits = list(range(GUESSES))
        chance.shuffle(digits)
        # A guess of its own first: what all ten have in common is then known to be cached.
        first = await attack.ask(about, key=other, max_tokens=1, **users)
        replies = dict[int, Reply]()
        for digit in digits:
            text = f"{about}{digit}{rest}"
            reply = await attack.ask(text, key=other, max_tokens=1, **users)
            outcome.count(reply)
            replies[digit] = reply
        answers = [("user", asked), *(("stranger", one) for one in (first, *replies.values()))]
        if refused := [(who, reply) for who, reply in answers if reply.kind != "200"]:
            told = [f"the {who} got {reply.kind} {reply.text[:80]}" for who, reply in refused]
            outcome.broken += told
            continue
        rounds += 1
        most = max(reply.cached for reply in replies.values())
        by_tokens += chance.choice([d for d in digits if replies[d].cached == most]) == code
        by_time += min(digits, key=lambda digit: replies[digit].seconds) == code
    for what, right in (("cached tokens", by_tokens), ("time", by_time)):
        outcome.seen[f"right by {what} {right} of {rounds}"] = 1
        if binom.sf(right - 1, rounds, 1 / GUESSES) < UNLIKELY:
            outcome.broken.append(f"by {what} a stranger guessed {right} of {rounds} digits")
