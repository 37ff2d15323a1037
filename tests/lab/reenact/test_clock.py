"""Virtual time: exact, in order, and over at once."""

from __future__ import annotations

import asyncio

import pytest

from deploy.lab.reenact import clock


def test_hours_pass_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        time = asyncio.get_running_loop().time

        async def wait(name: str, *delays: float) -> None:
            for delay in delays:
                await asyncio.sleep(delay)
                seen.append((name, time()))

        await asyncio.gather(wait("a", 3600, 0.25), wait("b", 0.001, 7200), wait("c", 0, 3600))
        return seen

    assert clock.run(main()) == [
        ("c", 0), ("b", 0.001), ("a", 3600), ("c", 3600), ("a", 3600.25), ("b", 7200.001),
    ]  # fmt: skip


def test_deadlines_are_of_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await asyncio.sleep(9.999)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        return loop.time()

    assert clock.run(main()) == pytest.approx(19.999)


def test_a_wait_for_nothing_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is left"):
        clock.run(main())
