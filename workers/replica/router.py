"""Chooses a replica for each call, by Serve's consistent hashing, and avoids silent replicas.

A process that is suspended, or lost with its node, closes no connection, and Serve keeps sending it
calls until its health checks have failed. A caller that notices it earlier calls `avoid_others`.
"""

from __future__ import annotations

from typing import Any, Final

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from workers.replica import routers

EVERY: Final = 1 << 16  # replicas: each of them is ranked


class ReplicaRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Ranks the replicas for a session AFFINITY/TRIES.

    All calls of one affinity have the same ranking; each retry begins one replica later. Avoided
    replicas come last.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.avoided: frozenset[str] = frozenset()
        routers.ROUTERS.add(self)

    def initialize_state(self, **kwargs: Any) -> None:
        super().initialize_state(num_fallback_replicas=EVERY, **kwargs)

    def _lookup_ranked_replicas(self, routing_key: str) -> list[Any]:
        request, _, tries = routing_key.rpartition("/")
        if not (request and tries.isdecimal()):
            request, tries = routing_key, "0"
        ranked = super()._lookup_ranked_replicas(request)
        if ranked:
            first = int(tries) % len(ranked)
            ranked = ranked[first:] + ranked[:first]
        return sorted(ranked, key=lambda replica: replica.unique_id in self.avoided)

    async def _choose_replica_for_request(self, pending_request: Any, **more: Any) -> Any:
        pending_request.metadata.replica = None  # see `routers.taker`; a full one may have refused
        replica = await super()._choose_replica_for_request(pending_request, **more)
        pending_request.metadata.replica = replica.replica_id.unique_id
        return replica

    @property
    def replicas(self) -> set[str]:
        """The tags of the replicas that Serve knows."""
        return {replica.unique_id for replica in self._replica_set_snapshot}
