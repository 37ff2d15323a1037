"""How many replicas of each kind there should be, by the load that they report.

A worker's replica is full when its rows are taken, or when the requests that return to it have more
prefixes than its cache has slots: each step would then compute its prompt again. The number of
requests shows neither (a request holds no row while the other model writes, but always a slot). The
orchestrator's is full when its places are taken.
"""

from __future__ import annotations

from typing import Any

from deploy.service.worker_spec import Replicas

LOOK_BACK_S = 15.0  # over which a replica's load is averaged; fewer if the delays are shorter


def gpus_for(shares: list[float]) -> int:
    """Return the number of GPUs that shares take, by first fit, the largest share first."""
    free: list[float] = []
    for share in sorted(shares, reverse=True):
        for index, room in enumerate(free):
            if share <= room + 1e-9:
                free[index] = room - share
                break
        else:
            free.append(1.0 - share)
    return len(free)


def scaling(replicas: Replicas) -> dict[str, Any]:
    """Return options of `serve.deployment`."""
    if replicas.min == replicas.max:
        return {"num_replicas": replicas.min}
    config = {
        "min_replicas": replicas.min,
        "max_replicas": replicas.max,
        "upscale_delay_s": replicas.up_after_s,
        "downscale_delay_s": replicas.down_after_s,
        "look_back_period_s": max(2.0, min(LOOK_BACK_S, replicas.down_after_s)),
        "policy": {
            "policy_function": "deploy.service.scaling.PoolLoad",
            "policy_kwargs": {"full_at": replicas.full_at},
        },
    }
    return {"autoscaling_config": config}


class PoolLoad:
    """Serve's autoscaling policy; Serve adds delays and bounds.

    `full_at`: the load at which a replica counts as full, where 1 is all it has room for (see
    `record_autoscaling_stats` of `ReplicaServer` and `Orchestrator`).
    """

    def __init__(self, full_at: float) -> None:
        self._full_at = full_at

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas wanted, which may be a fraction, and no state."""
        loads = (context.aggregated_metrics or {}).get("load", {})
        if not loads:  # the replicas are starting, and have reported nothing yet
            return context.target_num_replicas, {}
        return sum(loads.values()) / self._full_at, {}
