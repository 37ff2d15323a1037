"""Shared by replicas: configuration, events and traces in a store, and a replica's use of it.

- `store`: the interface: documents, pointers, streams and values.
- `memory`: the store in one process's memory.
- `redis`: the store in Redis.
- `versions`: published policy versions, and which of them is active.
- `watcher`: a replica's copy of the configuration, kept current.
- `outbox`: writes to the store that requests do not wait for.
"""
