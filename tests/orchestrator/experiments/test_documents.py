"""Experiment documents: what they say by default, and how wrong ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.experiments.documents import Experiment, ExperimentState, initial_state

REWARDED = {"metric": "reward", "at_most": 1}


def document(**more: Any) -> dict[str, Any]:
    arms = [{"name": "large", "policy": "large-only"}, {"name": "shared", "policy": "specreason"}]
    return {"name": "trial", "arms": arms, **more}


def arms(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "large", "policy": "large-only"}, *given]


def second(**more: Any) -> dict[str, Any]:
    return {"name": "b", "policy": "x", **more}


def test_what_a_short_document_means() -> None:
    made = Experiment.parse(document())
    assert (made.base, made.seed, made.unit) == ("large", "trial", "request")
    assert made.weights == {"large": 0.5, "shared": 0.5}
    assert initial_state(7.0).coverage(made) == 1.0


def test_a_document_survives_the_store() -> None:
    made = Experiment.parse(
        document(
            unit="session",
            group={"name": "policies", "end": 0.5},
            goal={"metric": "ms", "within": [{"metric": "reward", "by": 0.01}]},
            guardrails=[{"metric": "ms", "at_most": 500, "quantile": 0.95}],
            ramp={"hold_s": 60},
        )
    )
    assert Experiment.parse(made.model_dump(mode="json")) == made
    state = initial_state(1.0)
    assert ExperimentState.parse(state.model_dump(mode="json")) == state


@pytest.mark.parametrize(
    ("wrong", "place", "told"),
    [
        ({"colour": "red"}, "colour", "unknown parameter"),
        ({"name": "../etc"}, "name", "pattern"),
        ({"unit": "planet"}, "unit", "'key'"),
        ({"coverage": 1.5}, "coverage", "must be at most 1, not 1.5"),
        ({"coverage": "1"}, "coverage", "must be a number"),
        ({"coverage": float("nan")}, "coverage", ""),
        ({"arms": []}, "arms", "empty"),
        ({"arms": arms()}, "arms", "two arms"),
        ({"arms": arms({"name": "large", "policy": "bild"})}, "arms", "two arms have this name"),
        ({"arms": arms({"name": "b", "policy": "bild", "weight": 0.5})}, "arms", "every arm"),
        ({"arms": arms({"name": "b"})}, "arms[1].policy", "missing"),
        ({"arms": arms(second(shadow=1))}, "arms[1].shadow", "true or false"),
        ({"arms": arms(second(shadow=True, weight=0.1))}, "arms", "shadow"),
        ({"arms": arms(second(grid={"k": [1, 2]}))}, "arms[1].grid", "unknown"),
        ({"control": "nobody"}, "control", "nobody"),
        ({"goal": {"metric": "joy"}}, "goal.metric", ""),
        ({"guardrails": [{"metric": "ms"}]}, "guardrails", "at_most"),
        ({"guardrails": [{**REWARDED, "quantile": 0.9}]}, "guardrails", "quantile"),
        ({"ramp": {"steps": [0.5, 0.1]}}, "ramp.steps", "rise"),
        ({"group": {"name": "g", "start": 0.5, "end": 0.5}}, "group", "below"),
        ({"kind": "bandit"}, "kind", "unknown parameter"),
        ({"exploration": 0.1}, "exploration", "unknown parameter"),
    ],
)
def test_wrong_documents_are_refused_by_name(wrong: dict[str, Any], place: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Experiment.parse(document(**wrong))
    assert caught.value.param == place
    assert told in caught.value.message


def test_weights_must_add_up() -> None:
    pair = [
        {"name": "a", "policy": "x", "weight": 0.5},
        {"name": "b", "policy": "x", "weight": 0.4},
    ]
    with pytest.raises(InvalidRequest, match=r"add up to 0\.9 instead of 1"):
        Experiment.parse(document(arms=pair))


def test_a_ramp_covers_step_by_step() -> None:
    made = Experiment.parse(document(coverage=0.5, ramp={}))
    state = initial_state(0.0)
    covered = [state.model_copy(update={"step": step}).coverage(made) for step in range(5)]
    assert covered == [0.005, 0.025, 0.125, 0.5, 0.5]


def test_experiments_exclude_each_other_only_within_a_group() -> None:
    def part(start: float, end: float, **more: Any) -> Experiment:
        group = {"name": "g", "start": start, "end": end}
        return Experiment.parse(document(group=group, **more))

    assert part(0, 0.5).excludes(part(0.5, 1))
    assert part(0.5, 1).excludes(part(0, 0.5))
    assert not part(0, 0.6).excludes(part(0.5, 1))
    assert not part(0, 0.5).excludes(part(0.5, 1, unit="user"))
    assert not part(0, 0.5).excludes(Experiment.parse(document()))
