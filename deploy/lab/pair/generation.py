"""Prompts decoded to the end by a `Decoder`, without an engine: for benchmarks, tests and data."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from orchestrator.types import Sampling
from workers.model.tree import Row
from workers.speculation.decode import Decoder


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    *,
    sampling: Sampling | None = None,
    stop_token_ids: Sequence[int] = (),
    methods: Sequence[str | None] = (),
) -> list[list[int]]:
    """Decode prompts to the end, as many at once as there are slots.

    Returns the new tokens of each prompt, a stop token included. `methods` names one for each
    prompt; none: the decoder's default for all.
    """
    sampling = sampling or Sampling()
    outputs: list[list[int]] = [[] for _ in prompts]
    waiting, free = deque(enumerate(prompts)), list(range(decoder.target.cache.slots))
    owners: dict[int, int] = {}  # prompt of each slot

    def append(row: Row, tokens: list[int]) -> None:
        output = outputs[owners[row.slot]]
        for token in tokens:
            output.append(token)
            if token in stop_token_ids or len(output) == max_new:
                decoder.leave(row)
                insort(free, row.slot)
                return

    while waiting or decoder.rows:
        while waiting and free:
            number, prompt = waiting.popleft()
            slot = free.pop(0)
            owners[slot] = number
            method = methods[number] if methods else None
            seed = (sampling.seed or 0) + number
            row = Row(slot, list(prompt), sampling, seed, max_new, method)
            decoder.target.cache.truncate(slot, row.ids, len(prompt) - 1)
            append(row, decoder.join(row, decoder.target.prefill(slot, row.ids)).tokens)
        for rows in decoder.method_groups(decoder.rows):
            for row, accepted in decoder.step(rows):
                if row.failure is not None:
                    raise row.failure
                append(row, accepted.tokens)
    return outputs
