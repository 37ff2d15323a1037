"""vLLM's scheduler, which may be told how much of a prompt to take from the prefix cache.

vLLM gives log-probabilities of a prompt only for the part of it that it reads, and so reads the
whole of it (`skip_reading_prefix_cache`). A judge wants those of the last step alone. A request
whose `extra_args` hold `MOST_CACHED` takes at most that many tokens from the cache and reads the
rest anew: the step, and the few tokens of the block that it begins in.

Runs in vLLM's engine process. The interface is vLLM's own and not public; `loading.check_version`
says where it is another.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from workers.vllm.lifeline import follow_parent, follow_parent_from_the_start

MOST_CACHED = "baton_most_cached"

follow_parent_from_the_start()


class _ReadsAnew:
    """Wraps the cache's look-up of a scheduler."""

    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        follow_parent()
        manager = self.kv_cache_manager
        whole = manager.get_computed_blocks

        def get_computed_blocks(request: Any) -> Any:
            most = (request.sampling_params.extra_args or {}).get(MOST_CACHED)
            if most is None or not manager.prefix_cache_lookup_enabled(request):
                return whole(request)
            blocks, count, _ = manager.coordinator.find_longest_cache_hit(
                request.block_hashes, min(most, request.num_tokens - 1)
            )
            return manager.create_kv_cache_blocks(blocks), count, 0

        manager.get_computed_blocks = get_computed_blocks


class JudgeScheduler(_ReadsAnew, Scheduler):  # type: ignore[misc]
    """Where vLLM schedules between two passes."""


class AsyncJudgeScheduler(_ReadsAnew, AsyncScheduler):  # type: ignore[misc]
    """Where vLLM schedules while a pass runs."""
