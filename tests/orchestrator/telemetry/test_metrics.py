"""The process's series, from the responses of requests."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator.errors import Overloaded
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import TextDelta
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.telemetry.metrics import ServiceMetrics
from orchestrator.types import Message
from policies.specreason import SpecReason
from tests.workers.scripted import Scripted


def request(response: ResponseAccumulator, **small: Any) -> Any:
    story = ("a b\n\nc d", "four")
    workers: Any = {
        "small": Scripted(story=story, **small),
        "large": Scripted(story=story, scores=(9, 2)),
    }
    return solve(SpecReason(), Request("r", (Message("user", "2+2?"),)), workers, response)


async def test_the_processes_series() -> None:
    registry = CollectorRegistry()
    service, response = ServiceMetrics(registry), ResponseAccumulator()
    with service.request("specreason", response):
        async for event in request(response):
            if isinstance(event, TextDelta):
                assert registry.get_sample_value("baton_live_requests") == 1
    text = generate_latest(registry).decode()
    for sample in (
        "live_requests 0",
        'requests_total{outcome="stop",policy="specreason"} 1',
        'steps_total{accepted="true",author="small"} 1',
        'steps_total{accepted="false",author="small"} 1',
        'steps_total{accepted="true",author="large"} 2',
        'tokens_total{worker="small"} 4',
        'tokens_total{worker="large"} 3',
        "discarded_tokens_total 2",
        "judge_calls_total 2",
        'request_seconds_count{policy="specreason"} 1',
        'first_text_seconds_count{policy="specreason"} 1',
    ):
        assert f"\nbaton_{sample}.0\n" in text
    assert "# HELP baton_live_requests Requests whose policy is running now.\n" in text


async def test_requests_cut_short_are_counted_and_stopped() -> None:
    registry = CollectorRegistry()
    service = ServiceMetrics(registry)
    response = ResponseAccumulator()
    with suppress(GeneratorExit), service.request("specreason", response):
        async with aclosing(request(response)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    raise GeneratorExit  # as whoever drives the events is closed
    sample = registry.get_sample_value
    labels = {"policy": "specreason", "outcome": "cancelled"}
    assert sample("baton_requests_total", labels) == 1
    assert sample("baton_live_requests") == 0
    assert sample("baton_tokens_total", {"worker": "small"}) == 2
    response = ResponseAccumulator()
    with pytest.raises(Overloaded), service.request("specreason", response):
        async for _ in request(response, down=Overloaded("full")):
            pass
    labels["outcome"] = "overloaded"
    assert sample("baton_requests_total", labels) == 1
