"""Attacks on a running service, each with what must hold afterwards: `baton lab torture`.

- `attack`: the service under attack, a question to it, and the outcome of a scenario.
- `hostile`: malformed requests.
- `guesses`: a stranger who guesses at the prompts of another user.
- `load`: more requests than places, a long soak.
- `faults`: killed and stopped processes, and Redis in bad states, under requests.
- `own`: the processes and the redis-server of a service started for this.
- `run`: the scenarios by name, the service started for them, and their table.

All attacks are bounded in time and count, and the same in every run.
"""
