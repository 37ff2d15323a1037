"""Engines in virtual time against sums made by hand, in milliseconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deploy.lab.call_costs import DraftRounds, WorkerCosts
from deploy.lab.reenact import clock
from deploy.lab.reenact.engine import Device, VirtualEngine

COSTS: dict[str, Any] = {
    "model": "m", "call_ms": 0, "read_ms": 12, "read_token_ms": 0.5, "token_ms": {1: 10, 3: 14},
}  # fmt: skip


def model(**more: Any) -> WorkerCosts:
    return WorkerCosts.model_validate(COSTS | more)


async def run(engine: VirtualEngine, unread: int, tokens: int, aborted: bool = False) -> None:
    row = engine.begin(unread)
    await engine.write(row, max(1, tokens))
    engine.end(row, aborted)


def ends(*rows: tuple[VirtualEngine, float, int, int]) -> list[Any]:
    """When rows end, each an engine, when it begins, tokens to read and tokens to write."""

    async def main() -> list[float]:
        async def row(engine: VirtualEngine, at: float, *work: Any) -> float:
            await asyncio.sleep(at / 1000)
            await run(engine, *work)
            return asyncio.get_running_loop().time() * 1000

        return list(await asyncio.gather(*(row(*one) for one in rows)))

    return [pytest.approx(ms) for ms in clock.run(main())]


def test_a_pass_reads_and_gives_the_first_token() -> None:
    engine = VirtualEngine(model(), Device())
    assert ends((engine, 0, 6, 3), (engine, 1000, 6, 0)) == [15 + 10 + 10, 1015]


def test_rows_share_passes_and_join_at_the_next() -> None:
    """Alone to 15 and 25; then both read and write in one pass, of 12 + 2; the rest of two rows."""
    engine = VirtualEngine(model(), Device())
    assert ends((engine, 0, 6, 4), (engine, 16, 4, 4)) == [25 + 14 + 12, 25 + 14 + 12 + 20]


def test_a_pass_of_few_tokens_has_a_graph() -> None:
    engine = VirtualEngine(model(graph_tokens=8, no_graph_ms=100), Device())
    assert ends((engine, 0, 7, 1), (engine, 1000, 8, 1)) == [12, 1000 + 12 + 100 + 4]


def test_passes_in_flight_delay_the_next_call_unless_others_carry_them() -> None:
    engine = VirtualEngine(model(abort_passes=2), Device())
    assert ends((engine, 0, 6, 1, True), (engine, 20, 6, 1)) == [15, 35 + 15]  # type: ignore[arg-type]
    engine = VirtualEngine(model(abort_passes=2), Device())
    # Two tokens each beside another row: 12 + 6 and 12.
    assert ends((engine, 0, 6, 2, True), (engine, 0, 6, 3)) == [18 + 12, 30 + 10]  # type: ignore[arg-type]


def test_models_of_one_device_each_go_at_half_their_speed() -> None:
    device = Device()
    small, large = (
        VirtualEngine(model(token_ms=4, read_ms=0), device),
        VirtualEngine(model(), device),
    )
    # 4.5 small ms take 9, until when the large model has done 4.5 of 20.
    assert ends((small, 0, 1, 1), (large, 0, 16, 1)) == [9, 24.5]
    apart = VirtualEngine(model(token_ms=4, read_ms=0), Device())
    assert ends((apart, 0, 1, 1), (large, 0, 16, 1)) == [4.5, 20]


def test_a_round_of_speculation_makes_several_tokens() -> None:
    """Reading gives one token, without drafts. A round is 10 + 2 x 3 ms, of 2.5 tokens."""
    rounds = DraftRounds(drafts=2, tokens_a_round=2.5)
    engine = VirtualEngine(model(), Device(), (model(token_ms=3), rounds))
    assert ends((engine, 0, 6, 1), (engine, 100, 6, 6)) == [15, 115 + 2 * 16]
    assert ends((engine, 0, 6, 7)) == [15 + 3 * 16]


def test_a_row_that_runs_ahead_is_taken_where_it_is() -> None:
    """Read and one token by 15, two more by 35; then as much as was run ahead, three rows wide."""

    async def main() -> list[float]:
        engine, seen = VirtualEngine(model(), Device()), []
        time = asyncio.get_running_loop().time
        row = engine.begin(6)
        for tokens, pause in ((3, 0.03), (4, 1.0), (2, 0.0), (1, 0.0)):
            await engine.write(row, tokens)
            seen.append(time() * 1000)
            engine.run_ahead(row, 2, 3)
            await asyncio.sleep(pause)
        engine.end(row)
        return seen

    # Two passes of 14 by 63, and from 65 on two of 10; two are made in the next second.
    # The last is one of a pass that has begun.
    assert clock.run(main()) == [pytest.approx(ms) for ms in (35, 85, 1085, 1099)]


def test_a_pass_ahead_lets_others_pass_until_a_call_waits_for_it() -> None:
    """From 15 on a pass of 10 runs ahead; the other model's of 10 begins at 20."""

    async def main(asked_at: float) -> list[float]:
        device = Device()
        engine, other = VirtualEngine(model(), device), VirtualEngine(model(), device)
        loop = asyncio.get_running_loop()

        async def ahead() -> float:
            row = engine.begin(6)
            await engine.write(row, 1)
            engine.run_ahead(row, 1, 1)
            await asyncio.sleep(asked_at / 1000 - loop.time())
            await engine.write(row, 1)
            return loop.time() * 1000

        async def large() -> float:
            await asyncio.sleep(0.020)
            await run(other, 0, 1)
            return loop.time() * 1000

        return list(await asyncio.gather(ahead(), large()))

    assert clock.run(main(100)) == [100, pytest.approx(30)]
    # Asked for at 24, with five of its ten and six of the other's left.
    assert clock.run(main(24)) == [pytest.approx(34), pytest.approx(35)]
