"""What one decoded token of each model costs in the engine, measured side by side."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

from orchestrator.types import Generation, Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.engine.backend import BuiltinBackend
from workers.engine.loading import load
from workers.worker import EngineWorker

PROMPT = "Start with 12. Add 7. Multiply by 3. Subtract 4. What is the result?"


def decode_cost(folder: Path, rounds: int = 7, tokens: int = 128) -> dict[str, float]:
    """Milliseconds a token at one stream, fp32, one thread: medians over alternating rounds.

    Sampled at a high temperature, so that both models generate all tokens. Prefill is not counted:
    its cost is measured by a generation of one token and subtracted.
    """
    return asyncio.run(_measure(folder, rounds, tokens))


async def _measure(folder: Path, rounds: int, tokens: int) -> dict[str, float]:
    workers = {name: load(str(folder / name), threads=1) for name in ("small", "large")}
    try:
        times: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(rounds + 1):
            for name, worker in workers.items():
                ms = await _per_token(worker, tokens, seed=turn)
                if turn:  # the first round warms up
                    times[name].append(ms)
    finally:
        for worker in workers.values():
            worker.close()
    cost = {f"{name}_ms_per_token": statistics.median(ms) for name, ms in times.items()}
    return cost | {"ratio": cost["large_ms_per_token"] / cost["small_ms_per_token"]}


async def _per_token(worker: EngineWorker[BuiltinBackend], tokens: int, seed: int) -> float:
    """Cost of the tokens after the first, over generations that may end early."""
    total_ms, generated, attempt = 0.0, 0, 0
    while generated < tokens:
        attempt += 1
        sampling = Sampling(temperature=1.5, seed=1000 * seed + attempt)
        call = Call(f"cost-{seed}-{attempt}", Transcript((Message("user", PROMPT),)))
        one = await _generate(worker, call, StopCriteria(1), sampling)
        many = await _generate(worker, call, StopCriteria(tokens), sampling)
        total_ms += many.ms - one.ms
        generated += many.usage.generated - one.usage.generated
    return total_ms / generated


async def _generate(
    worker: EngineWorker[BuiltinBackend], call: Call, criteria: StopCriteria, sampling: Sampling
) -> Generation:
    async for item in worker.generate(call, criteria, sampling, stream=False):
        if isinstance(item, Generation):
            return item
    raise AssertionError("a generation ends with itself")
