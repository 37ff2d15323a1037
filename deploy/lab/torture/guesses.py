"""A stranger who guesses at the prompts of another user: no better than chance.

Prefix caches make a prompt cheaper that begins like an earlier one. If the reported cached tokens
or the time to the answer revealed that of another user's prompt, a stranger could read it letter by
letter.
"""

from __future__ import annotations

from typing import Any, Final

from scipy.stats import binom

from deploy.lab.torture.attack import Attack, Reply

GUESSES: Final = 10  # a round: the digits
UNLIKELY: Final = 1e-3  # chance below which right guesses count as found out
LEAST: Final = 4  # rounds: with fewer, all guesses right would not be unlikely enough


async def guesses(attack: Attack) -> None:
    """Rounds of ten guesses: a user asks about a digit, and a stranger about all ten.

    The stranger takes the guess with the most cached tokens, or the fastest, for the right one. A
    round in which a request was not answered does not count, and breaks the scenario. Without a
    second key the two share one and differ by `user`.
    """
    other, chance, outcome = attack.target.other_key, attack.chance, attack.outcome
    stranger: dict[str, Any] = {} if other is not None else {"user": "stranger"}
    victim: dict[str, Any] = {} if other is not None else {"user": "victim"}
    by_tokens = by_time = rounds = 0
    for _ in range(max(LEAST, attack.number // GUESSES)):
        about = f"Account {chance.randrange(10**9)}. The first digit of the code is "
        code = chance.randrange(GUESSES)
        rest = f" and the rest is {chance.randrange(10**6)}. What is 1+1?"
        asked = await attack.ask(f"{about}{code}{rest}", max_tokens=1, **victim)
        digits = list(range(GUESSES))
        chance.shuffle(digits)
        # One request caches what all ten guesses share.
        first = await attack.ask(about, key=other, max_tokens=1, **stranger)
        replies = dict[int, Reply]()
        for digit in digits:
            text = f"{about}{digit}{rest}"
            reply = await attack.ask(text, key=other, max_tokens=1, **stranger)
            outcome.count(reply)
            replies[digit] = reply
        answers = [("user", asked), *(("stranger", one) for one in (first, *replies.values()))]
        if refused := [(who, reply) for who, reply in answers if reply.kind != "200"]:
            outcome.broken += [
                f"the {who} got {reply.kind} {reply.text[:80]}" for who, reply in refused
            ]
            continue
        rounds += 1
        most = max(reply.cached for reply in replies.values())
        by_tokens += chance.choice([d for d in digits if replies[d].cached == most]) == code
        by_time += min(digits, key=lambda digit: replies[digit].seconds) == code
    for what, right in (("cached tokens", by_tokens), ("time", by_time)):
        outcome.seen[f"right by {what} {right} of {rounds}"] = 1
        if binom.sf(right - 1, rounds, 1 / GUESSES) < UNLIKELY:
            outcome.broken.append(f"by {what} a stranger guessed {right} of {rounds} digits")
