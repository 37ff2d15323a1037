"""Attacks on a running service, each with what must hold afterwards: `baton torture`.

- `attack`: a service under attack, what was seen of it, and one question to it.
- `hostile`: malformed requests.
- `guesses`: a stranger who guesses at the prompts of somebody else.
- `load`: prompts far too long, more requests than places, one key's flood, a long soak.
- `faults`: processes killed and stopped under streams.
- `redis_faults`: a Redis in bad states under streams.
- `run`: the scenarios by name, one after the other, and their table.

All of them are bounded in time and count, and repeatable by their seed.
"""
