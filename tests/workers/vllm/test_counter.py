"""What counts as a pass, and what as a round."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import (
    IterationStats,
    LoRARequestStates,
    RequestStateStats,
    SchedulerStats,
)
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from workers.vllm.counter import EngineCounter


def iteration(*outputs: tuple[int, bool]) -> Any:
    """vLLM's own tally of outputs of so many tokens, the first of a request or not."""
    stats, now = IterationStats(), time.time()
    for tokens, first in outputs:
        state = RequestStateStats(arrival_time=now)
        output = EngineCoreOutput("r", list(range(tokens)))
        stats.update_from_output(output, now, first, state, LoRARequestStates(), None)
    return stats


def test_a_part_of_a_prompt_is_progress() -> None:
    counter = EngineCounter()
    counter.record(SchedulerStats(kv_cache_usage=0.5), None)
    assert (counter.passes, counter.rounds, counter.cache_usage) == (1, 0, 0.5)


def test_judges_and_prefills_make_no_rounds() -> None:
    counter, drafts = EngineCounter(), SpecDecodingStats.new(3)
    drafts.observe_draft(3, 2)
    drafts.observe_draft(3, 0)
    counter.record(SchedulerStats(), iteration((1, True), (1, True)))
    assert (counter.rounds, counter.emitted) == (0, 0)
    counter.record(
        SchedulerStats(spec_decoding_stats=drafts), iteration((1, True), (3, False), (1, False))
    )
    assert (counter.passes, counter.rounds, counter.emitted) == (2, 2, 4)
    assert counter.acceptance.stats()["accepted_tokens"] == 2
