"""What replicas share: configuration, events and traces in a store, and how a replica uses it.

- `store`: the port: documents, pointers, streams and values.
- `memory`: the store in one process's memory.
- `redis`: the store in Redis.
- `versions`: published policy versions, and which of them is active.
- `watcher`: a replica's copy of the configuration, kept current.
- `foreign`: foreign entries in the store.
- `outbox`: writes to the store that requests do not wait for.
"""
