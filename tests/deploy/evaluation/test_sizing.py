"""What a load needs, reckoned by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from deploy.evaluation import sizing
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import Question
from deploy.evaluation.sizing import Measured, Reading, check_same_replicas, measure, needs
from orchestrator.errors import InvalidRequest, WorkerUnavailable
from orchestrator.http.auth import Access, Keys
from tests.deploy.conftest import ROOT
from tests.orchestrator.serving import service, serving

MEASURED = Measured(
    requests=100,
    seconds=2.0,
    small_tokens=50,
    large_tokens=10,
    judge_calls=3,
    small_calls=4,
    large_calls=4,
    small_row_s=0.5,
    large_row_s=1.6,
    cpu_s=0.035,
    redis_calls=2.0,
    redis_us=70.0,
    redis_bytes=4000.0,
    redis_kept=3000.0,
    idle_cpu=0.01,
    idle_redis=4.0,
    http_ms=5.0,
    call_ms=5.0,
    small_rows=10,
    large_rows=4,
)


def test_sums_over_other_replicas_are_refused() -> None:
    both, one = (Reading(0.0, frozenset(names), 1.0, 1.0, 1.0) for names in ("ab", "a"))
    check_same_replicas(both, both)
    with pytest.raises(WorkerUnavailable, match="not always there: b; measure again"):
        check_same_replicas(both, both, one)


def test_needs_by_littles_law() -> None:
    found = {need.part: need for need in needs(MEASURED, 6000)}  # 100 a second
    assert found["orchestrator"].count == 5  # 3.5 cores at 0.7 each
    assert found["small replica"].count == math.ceil(50 / 8)  # 50 rows at 0.8 of 10
    assert found["large replica"].count == 50  # 160 rows at 0.8 of 4
    assert found["Redis"].count == 1
    assert found["Redis"].each == pytest.approx(10_000)
    assert found["small replica"].formula == "8 rows / 0.5 s in a row"


def test_what_is_full_first_stands_first() -> None:
    assert [need.part for need in needs(MEASURED, 1)] == [
        "large replica",  # 2 requests a second
        "small replica",  # 16
        "orchestrator",  # 20
        "Redis",
    ]


def test_what_is_not_the_services_own_is_left_out() -> None:
    """A model on a server of somebody else's has no rows here; a store in memory no Redis."""
    elsewhere = replace(MEASURED, large_rows=None, redis_us=None)
    assert [need.part for need in needs(elsewhere, 6000)] == ["small replica", "orchestrator"]


def test_the_guides_example_is_its_own_formula() -> None:
    """Rows, passes, holding times and replicas of the table, from sizes and bandwidths."""
    models = {"Qwen3-1.7B": (3.4, 112 * 1024), "Qwen3-8B": (16.4, 144 * 1024)}  # GB, bytes a token
    gpus = {"L4": (24, 300), "A100": (80, 2039)}  # GB, GB/s
    passes = {"small": 600, "large": 200 + 40, "large alone": 800}
    guide = (ROOT / "docs" / "operations.md").read_text()
    found = re.findall(r"^\| ([a-z ]+) \| (Qwen\S+) \| (\w+) \| ([\d,]+) \| (.*) \|$", guide, re.M)
    assert len(found) == 6
    for pool, model, gpu, max_len, values in found:
        (weights, token), (memory, bandwidth) = models[model], gpus[gpu]
        row = 2 * (int(max_len.replace(",", "")) + 128) * token / 1e9
        rows = int((memory - weights - 1) / row)
        seconds = (weights + rows * 1000 * token / 1e9) / bandwidth
        held = passes[pool] * seconds
        need = math.ceil(10_000 / 60 * held / (0.8 * rows))
        expected = (
            f"{rows} | {1000 * seconds:.1f} ms | {held:.2f} s | {0.8 * rows / held:.2f} | {need}"
        )
        assert values == expected


def test_metrics_are_read_with_an_observers_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """And questions asked with an API key, which may not read them."""
    for name in ("QUIET_S", "SETTLE_S", "LOOK_S"):
        monkeypatch.setattr(sizing, name, 0.0)
    read = sizing._read

    def with_replicas(*given: Any) -> Any:
        """What only Ray's replicas say of themselves."""
        reading, scraped = read(*given)
        return reading, {**scraped, ("baton_orchestrator_replicas", ""): 1.0}

    monkeypatch.setattr(sizing, "_read", with_replicas)
    monkeypatch.setenv("BATON_API_KEY", "sk-user")
    problems = [Question("1 + 1?", "2")]
    access = Access(Keys(["sk-user"]), observers=Keys(["sk-observer"]))
    with serving(service(access=access)) as url:
        with pytest.raises(InvalidRequest, match="observer's key"):
            measure(f"{url}/v1", problems, Candidate.parse("specreason"))
        monkeypatch.setenv("BATON_OBSERVER_KEY", "sk-observer")
        assert measure(f"{url}/v1", problems, Candidate.parse("specreason")).requests == 1
