"""What vLLM's engine reports of its passes, its cache and its speculation."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from workers.model.acceptance import Acceptance


class EngineCounter(StatLoggerBase):  # type: ignore[misc]
    """Counts the engine's passes, what its speculation drafts, and how full its cache is.

    Attributes:
        passes: of the model, also those that read a part of a long prompt.
        rounds: of decoding, summed over the requests in each. The token after a prompt, which is
            all that a judge has, belongs to none.
        emitted: tokens of those rounds.
    """

    def __init__(self) -> None:
        self.passes = self.rounds = self.emitted = 0
        self.cache_usage = 0.0
        self.acceptance = Acceptance()

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if iteration_stats is not None:
            firsts = len(iteration_stats.time_to_first_tokens_iter)
            self.rounds += len(iteration_stats.inter_token_latencies_iter)
            self.emitted += iteration_stats.num_generation_tokens - firsts
        if scheduler_stats is not None:
            self.passes += 1
            self.cache_usage = scheduler_stats.kv_cache_usage
            if (made := scheduler_stats.spec_decoding_stats) is not None:
                self.acceptance.add(
                    made.num_draft_tokens,
                    made.num_accepted_tokens,
                    made.num_draft_tokens_per_pos,
                    made.num_accepted_tokens_per_pos,
                )

    def log_engine_initialized(self) -> None:
        pass
