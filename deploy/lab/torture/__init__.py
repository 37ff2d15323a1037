"""Attacks on a running service, each with what must hold afterwards: `baton lab torture`.

- `attack`: the service under attack, a question to it, and the outcome of a scenario.
- `load`: more requests than places.
- `faults`: killed and stopped processes under requests.
- `own`: a service started for this, and its processes.
- `run`: the scenarios by name.

All attacks are bounded in time and count, and the same in every run.
"""
