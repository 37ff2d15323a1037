"""Attacks on a running service, each with what must hold afterwards: `baton lab torture`.

- `own`: the service under attack, which may be started for this, and its processes.
- `attack`: a question to it, and the outcome of a scenario.
- `load`: more requests than places.
- `faults`: killed and stopped processes under requests.
- `run`: the scenarios by name.

All attacks are bounded in time and count, and the same in every run.
"""
