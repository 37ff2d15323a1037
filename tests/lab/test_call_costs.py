"""Costs of passes against sums made by hand, and the files that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.lab.call_costs import HERE, Costs, WorkerCosts, load_costs
from orchestrator.errors import ConfigError

WORKER = {"model": "m", "call_ms": 1, "read_ms": 2, "read_token_ms": 0.5, "token_ms": 10}


def costs(**large: Any) -> Costs:
    data = {"name": "x", "hardware": "y", "sources": ["z"], "small": WORKER}
    return Costs.model_validate({**data, "large": {**WORKER, **large}})


def test_a_pass_by_live_streams() -> None:
    worker = WorkerCosts.model_validate({**WORKER, "token_ms": {32: 20, 8: 10, 16: 14}})
    assert [worker.pass_ms(count) for count in (1, 8, 12, 16, 20, 32)] == [10, 10, 12, 14, 15.5, 20]
    assert worker.most == 32
    assert costs(token_ms={8: 10}).most == 1


def test_a_pass_that_reads() -> None:
    worker = WorkerCosts.model_validate({**WORKER, "read_ms": 12, "token_ms": {1: 10, 3: 14}})
    assert [worker.pass_ms(*one) for one in ((1, 4), (3, 4))] == [14, 16]
    graphs = worker.model_copy(update={"graph_tokens": 5, "no_graph_ms": 100})
    assert [graphs.pass_ms(*one) for one in ((1, 4), (1, 5), (3, 0))] == [12, 114.5, 14]


@pytest.mark.parametrize("value", [0, -1, {}, {0: 5}, {8: 0}, {"few": 5}, "fast"])
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="token_ms"):
        costs(token_ms=value)


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.yaml")))
def test_the_costs_that_ship(name: str) -> None:
    pair = load_costs(name)
    for worker in (pair.small, pair.large):
        times = [worker.token_ms[streams] for streams in sorted(worker.token_ms)]
        assert times == sorted(times)  # more streams, slower passes
        assert worker.call_ms > 0
    assert (pair.large.pass_ms(1) > pair.small.pass_ms(1)) == ("a3b" not in name)
    told = " ".join((*pair.sources, *pair.assumptions))
    assert all(figure in told for figure in ("token_ms", "read_token_ms", "call_ms"))


def test_bad_costs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, said in (("a: [", "not YAML"), ("name: x", "hardware"), ("[]", "mine.yaml: ")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_costs(str(path))
    with pytest.raises(ConfigError, match=r"there are measured-1\.5b-32b-h100"):
        load_costs("nope")
