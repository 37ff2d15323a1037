"""The cost model against sums made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.evaluation.recording import RecordedRequest, Recording
from deploy.lab.call_costs import ASSUMPTIONS, Costs, predict, predict_loaded
from orchestrator.errors import ConfigError, WorkerUnavailable
from orchestrator.loop.actions import Classify, Generate, Verify, Write
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import (
    Classification,
    Generation,
    Message,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
    Verification,
)

TRACE = Transcript((Message("user", "?"),))
SMALL = {"model": "s", "call_ms": 1, "read_ms": 2, "read_token_ms": 0.5, "token_ms": 10}
LARGE = {"model": "l", "call_ms": 3, "read_ms": 20, "read_token_ms": 1, "token_ms": 100}


def costs(**more: Any) -> Costs:
    data = {"name": "x", "hardware": "y", "sources": ["z"], "small": SMALL, "large": LARGE}
    return Costs.model_validate({**data, **more})


def generate(
    worker: Any, prompt: int, cached: int, generated: int, criteria: int = 99
) -> ActionCompleted:
    usage = Usage(prompt, cached, generated)
    return ActionCompleted(
        Generate(worker, TRACE, StopCriteria(criteria)),
        Generation(Segment(worker, "a"), usage),
        7.0,
    )


def test_a_token_by_live_streams() -> None:
    worker = costs(small={**SMALL, "token_ms": {32: 20, 8: 10, 16: 14}}).small
    assert [worker.token_ms_at(n) for n in (1, 8, 12, 16, 20, 32)] == [10, 10, 12, 14, 15.5, 20]
    assert worker.at(12).token_ms_at(1) == 12
    with pytest.raises(ConfigError, match="s: token_ms has figures up to 32 live streams"):
        worker.token_ms_at(32.5)
    assert costs().fewest == 1
    assert costs(small={**SMALL, "token_ms": {8: 10}}).fewest == 8


@pytest.mark.parametrize("value", [0, -1, {}, {0: 5}, {8: 0}, {"few": 5}, "fast"])
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="token_ms"):
        costs(small={**SMALL, "token_ms": value})


def test_two_models_that_share_the_load_share_the_streams() -> None:
    """Half of the time at either model: each has half of the requests."""
    pair = costs(
        small={**SMALL, "call_ms": 0, "token_ms": {1: 10, 8: 10}},
        large={**LARGE, "call_ms": 0, "token_ms": {4: 10, 8: 12}},
    )
    one = recording(generate("small", 5, 5, 11), generate("large", 9, 9, 11))
    (found,), live = predict_loaded([one], pair, 8)
    assert found.ms == pytest.approx(200, rel=0.1)
    assert live["small"] == pytest.approx(4, rel=0.1)
    assert live["large"] == pytest.approx(4, rel=0.1)
    assert found.busy["small"] == 100


def recording(*events: ActionCompleted) -> Recording:
    return Recording(RecordedRequest("r", "p", TRACE.messages), events)


def test_calls_in_turn_add_up() -> None:
    judged = Classification(("0",), (1.0,), 0.0, Usage(40, 30, 0, 1))
    verified = Verification((0.1,), (1, 2), Usage(42, 40, 0, 1))
    write = ActionCompleted(
        Write("large", TRACE, StopCriteria(9)),
        Generation(Segment("large", "b"), Usage(50, 50, 3)),
        1.0,
    )
    found = predict(
        recording(
            generate("large", 20, 0, 0, criteria=0),  # 3 + 20 + 20 = 43
            generate("small", 20, 0, 0, criteria=0),  # 1 + 2 + 10 = 13, at the same time
            generate("small", 21, 20, 5),  # 1 + 2 + 0.5 + 40 = 43.5
            ActionCompleted(
                Classify("large", TRACE, (), "", ("0",)), judged, 1.0
            ),  # 3 + 20 + 10 = 33
            ActionCompleted(
                Verify("large", TRACE, Segment("small", "a")), verified, 1.0
            ),  # 3 + 20 + 2
            write,  # 3 + 200: nothing to read
        ),
        costs(),
    )
    assert (found.small, found.large, found.classify) == (56.5, 246.0, 58.0)
    assert found.ms == 13 + 43.5 + 33 + 25 + 203
    assert found.overlap == 43  # the large model read the prompt while the small one drafted


def test_the_first_action_begins_when_its_worker_has_read_the_prompt() -> None:
    reads = generate("large", 20, 0, 0, criteria=0), generate("small", 20, 0, 0, criteria=0)
    short = generate("small", 21, 20, 1)  # 1 + 2 + 0.5: over at 16.5, before the prompt is read
    judge = Classify("large", TRACE, (), "", ("0",))
    judged = ActionCompleted(judge, Classification(("0",), (1.0,), 0.0, Usage(40, 30, 0, 1)), 1.0)
    assert predict(recording(*reads, short, judged), costs()).ms == 43 + 33
    assert predict(recording(*reads, judged), costs()).ms == 43 + 33
    plain = [replace(one, answer=replace(one.answer, thinks=False)) for one in reads]
    found = predict(recording(*plain, generate("small", 21, 20, 5)), costs())
    assert found.ms == 43 + 43.5  # whether there is a thought is known when both have read it
    capped = recording(*reads, generate("small", 21, 20, 5))
    for name in ("max_cost", "max_large_tokens"):
        request = replace(capped.request, parameters={name: 1})
        assert predict(replace(capped, request=request), costs()).ms == 43 + 43.5
    assert predict(capped, costs()).ms == 13 + 43.5


def test_on_a_shared_device_nothing_overlaps() -> None:
    reading = generate("large", 20, 0, 0, criteria=0), generate("small", 20, 0, 0, criteria=0)
    found = predict(recording(*reading), costs(shared_device=True))
    assert (found.ms, found.overlap) == (43 + 13, 0)


def test_other_requests_on_a_shared_device_are_not_charged_and_that_is_said() -> None:
    flat = {"token_ms": {1: 10, 8: 10}}
    pair = costs(shared_device=True, small={**SMALL, **flat}, large={**LARGE, **flat})
    one = recording(generate("small", 5, 5, 11), generate("large", 9, 9, 11))
    (alone,), _ = predict_loaded([one], pair, 1)
    (crowded,), _ = predict_loaded([one], pair, 8)
    assert crowded.ms == alone.ms
    assert any("not for those of the other requests" in line for line in ASSUMPTIONS)


def test_a_failed_call_costs_its_overhead() -> None:
    failed = ActionCompleted(
        Generate("large", TRACE, StopCriteria(9)), WorkerUnavailable("gone"), 5.0
    )
    assert predict(recording(failed), costs()).ms == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sources": []}, "sources"),
        ({"gpu": 1}, "gpu"),
        ({"large": {**LARGE, "token_ms": 0}}, "large.token_ms"),
        ({"small": {**SMALL, "read_ms": -1}}, "small.read_ms"),
    ],
)
def test_costs_are_checked(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as info:
        costs(**more)
    assert ".".join(map(str, info.value.errors()[0]["loc"])) == said
