"""Clients and tools that nobody here wrote, against a running service: `make clients`.

- `run`: the harness, which writes build/clients.md.
- `tools`: load tools and evaluations, by the commands that users would give.
- `python/*_client.py`: a client each, with its own pinned requirements; `probe.py` judges.
- `node/*/client.mjs`: the same for clients in JavaScript.

The first run fetches some gigabytes of packages to build/clients, so this is no part of the tests.
"""
