"""vLLM's scheduler; a request may say how much of its prompt to take from the prefix cache.

vLLM gives log-probabilities only for the part of a prompt that it reads, and so reads the whole of
it (`skip_reading_prefix_cache`). A judge wants those of the last step alone. A request whose
`extra_args` hold `MOST_CACHED` takes at most that many tokens from the cache and reads the rest
again: the step, and the few tokens of the block in which it begins.

Runs in vLLM's engine process. The interface is not public; `loading.check_version` checks it.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import LogprobsTensors

from workers.vllm.lifeline import follow_parent, follow_parent_from_the_start

MOST_CACHED = "baton_most_cached"

follow_parent_from_the_start()


class _Judges:
    """Changes a scheduler's look-up of the cache, and its outputs of a pass."""

    kv_cache_manager: Any
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        follow_parent()
        manager = self.kv_cache_manager
        whole = manager.get_computed_blocks

        def get_computed_blocks(request: Any) -> Any:
            most = _most_cached(request)
            if most is None or not manager.prefix_cache_lookup_enabled(request):
                return whole(request)
            blocks, count, _ = manager.coordinator.find_longest_cache_hit(
                request.block_hashes, min(most, request.num_tokens - 1)
            )
            return manager.create_kv_cache_blocks(blocks), count, 0

        manager.get_computed_blocks = get_computed_blocks

    def update_from_output(self, scheduled: Any, made: Any) -> Any:
        """Return vLLM's outputs with only those rows of a request that it needs."""
        requests = {name: self.requests.get(name) for name in scheduled.num_scheduled_tokens}
        outputs = super().update_from_output(scheduled, made)  # type: ignore[misc]
        for core in outputs.values():
            for output in core.outputs:
                request, rows = requests.get(output.request_id), output.new_prompt_logprobs_tensors
                if request is not None and rows is not None:
                    output.new_prompt_logprobs_tensors = _wanted_rows(rows, request)
        return outputs


def _most_cached(request: Any) -> int | None:
    """Return the most tokens that a request takes from the cache; None: all."""
    most: int | None = (request.sampling_params.extra_args or {}).get(MOST_CACHED)
    return most


def _wanted_rows(rows: LogprobsTensors, request: Any) -> LogprobsTensors:
    """Return the log-probabilities of what a judge reads.

    vLLM's first runner gives a row for each id of a prompt, read or not: to send those of a long
    thought takes longer than the judge's pass.
    """
    most = _most_cached(request)
    if most is None or len(rows.logprobs) != request.num_prompt_tokens - 1:
        return rows
    return LogprobsTensors(
        rows.logprob_token_ids[most:], rows.logprobs[most:], rows.selected_token_ranks[most:]
    )


class JudgeScheduler(_Judges, Scheduler):  # type: ignore[misc]
    """For vLLM that schedules between two passes."""


class AsyncJudgeScheduler(_Judges, AsyncScheduler):  # type: ignore[misc]
    """For vLLM that schedules while a pass runs."""
