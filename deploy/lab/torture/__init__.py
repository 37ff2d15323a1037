"""Attacks on a running service, each with what must hold afterwards: `baton lab torture`.

- `attack`: a service under attack, what was seen of it, and one question to it.
- `hostile`: malformed requests.
- `guesses`: a stranger who guesses at the prompts of somebody else.
- `load`: prompts far too long, reads of metrics and reports, more requests than places, one key's
  flood, a long soak.
- `faults`: processes killed and stopped under streams.
- `states`: bad states of what the service runs on, under streams.
- `own_redis`: a redis-server of its own, and its bad states.
- `own_experiment`: an experiment of one's own with many events.
- `own_machine`: disk, clock and memory of its own, and theirs.
- `run`: the scenarios by name, one after the other, and their table.

All of them are bounded in time and count, and repeatable by their seed.
"""
