"""The baselines, as dialogues without an event loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ContextLengthExceeded, WorkerUnavailable
from orchestrator.loop.actions import Write
from orchestrator.loop.policy import Policy
from orchestrator.types import Message, Transcript
from policies import POLICIES
from policies.single import LargeOnly, SmallOnly
from policies.steps import write_out

TRACE = Transcript((Message("user", "2+2?"),))
CLOSED = replace(TRACE, closed=True)


@pytest.mark.parametrize(("policy", "name"), [(SmallOnly(), "small"), (LargeOnly(), "large")])
def test_one_worker_writes_everything(policy: Policy, name: str) -> None:
    assert policy.workers == {name}
    script = policy.solve(TRACE)
    thought = next(script)
    assert isinstance(thought, Write)
    assert (thought.worker, thought.transcript) == (name, TRACE)
    answer = script.send(CLOSED)
    assert isinstance(answer, Write)
    assert answer.transcript == CLOSED
    with pytest.raises(StopIteration):
        script.send(replace(CLOSED, done=True))


def test_another_worker_takes_over_and_keeps_what_was_shown() -> None:
    script = write_out(TRACE, "small", "large")
    assert next(script).worker == "small"  # type: ignore[attr-defined]
    assert script.send(CLOSED).worker == "small"  # type: ignore[attr-defined]
    takeover = script.throw(WorkerUnavailable("gone"))
    assert isinstance(takeover, Write)
    assert (takeover.worker, takeover.transcript) == ("large", CLOSED)
    with pytest.raises(WorkerUnavailable):
        script.throw(WorkerUnavailable("gone too"))


def test_another_worker_takes_over_where_the_context_of_the_first_is_full() -> None:
    script = write_out(CLOSED, "small", "large")
    next(script)
    takeover = script.throw(ContextLengthExceeded("full"))
    assert isinstance(takeover, Write)
    assert (takeover.worker, takeover.transcript) == ("large", CLOSED)
    with pytest.raises(ContextLengthExceeded):
        script.throw(ContextLengthExceeded("full too"))


def test_the_catalogue() -> None:
    assert {"small-only", "large-only", "specreason"} <= POLICIES.keys()
    assert all(policy().budget is None for policy in POLICIES.values())
