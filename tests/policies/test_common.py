"""What all policies share: bad parameters, who answers, and what a dead worker leaves."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ContextLengthExceeded, Overloaded, Unsupported, WorkerUnavailable
from policies import POLICIES
from tests.policies.plays import GONE, TRACE, Play, draft, ends, step, writes

BAD: dict[str, dict[str, list[Any]]] = {
    "bild": {
        "fallback": [-0.1, 1.1, nan],
        "rollback": [-0.1, nan, "often"],
        "window": [0, 513, 1.5],
        "large_first": ["perhaps"],
        "after_rollback": ["both"],
        "answer_by": ["me"],
        "budget": [0],
        "fall_back": [0.5],
    },
    "cascade": {
        "accept_at": [10.1, -1],
        "reject_below": [11, 9],  # 9 is above accept_at
        "signal": ["vibes"],
        "threshold": [11],
    },
    "coin": {"large_probability": [-0.1, 1.1, "often"]},
    "learned-gate": {"risk": [-0.1, inf], "correct_above": [2], "window": [0], "gate": [{"a": 1}]},
    "specreason": {
        "threshold": [10.1, -1],
        "scoring": ["vibes"],
        "first_n": [-1],
        "step_tokens": [0],
        "answer_by": ["me"],
        "judge": ["long"],
        "likelihood": [(1.0,), (1.0, nan)],
        "budget": [0],
        "treshold": [7],
    },
    "speculative-thinking": {
        "n1": [0],
        "n2": [-1],
        "n3": [0],
        "n3_growth": [-1],
        "n3_max": [0],
        "patience": [0],
        "patience_growth": [-1],
        "patience_max": [0],
        "check": [""],
        "affirmation": [("yes", "")],  # an empty word is in every text
        "reflection": [(" ",)],
        "verification": ["check"],
        "choose_large": ["maybe"],
        "every_delimiter": [2],
        "begin": [-1],
        "step_tokens": [0],
        "answer_by": ["me"],
        "budget": [0],
        "n4": [1],
    },
    "advisor": {
        "unsure": [-0.1, 1.1],
        "max_uses": [-1],
        "advice_tokens": [0],
        "instruction": [""],
        "advise_by": ["post"],
        "threshold": [11],
        "answer_by": ["me"],
    },
}


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [
        (policy, field, value)
        for policy, fields in BAD.items()
        for field, values in fields.items()
        for value in values
    ],
)
def test_bad_parameters_are_refused_by_name(policy: str, field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        POLICIES[policy](**{field: value})
    assert caught.value.errors()[0]["loc"][0] == field


ACTIVE = ("coin", "specreason", "cascade", "learned-gate", "advisor")


@pytest.mark.parametrize(
    ("policy", "answer_by", "last", "author"),
    [
        *((policy, "small", "large", "small") for policy in (*ACTIVE, "bild")),
        *((policy, "large", "small", "large") for policy in (*ACTIVE, "bild")),
        *((policy, "active", last, last) for policy in ACTIVE for last in ("small", "large")),
        *(
            ("speculative-thinking", answer_by, last, author)
            for answer_by, last, author in [
                ("active", "small", "small"),
                ("active", "large", "large"),
                ("active", None, "small"),
                ("small", "large", "small"),
                ("large", "small", "large"),
            ]
        ),
    ],
)
def test_who_answers(policy: str, answer_by: str, last: str | None, author: str) -> None:
    transcript = TRACE if last is None else TRACE.extend(step(last, "4"))
    closed = replace(transcript, closed=True)
    play = Play(POLICIES[policy](answer_by=answer_by), closed)  # type: ignore[call-arg]
    assert writes(play.first, author, closed)
    if author == "small" or policy == "speculative-thinking":
        assert writes(play(GONE), "large" if author == "small" else "small", closed)
    assert ends(play, replace(closed, done=True))


@pytest.mark.parametrize("policy", [*ACTIVE, "speculative-thinking"])
def test_the_words_that_close_a_thought_change_nobody_who_answers(policy: str) -> None:
    closing = step("policy", "So the answer is clear.")
    closed = replace(TRACE.extend(step("small", "4")).extend(closing), closed=True)
    play = Play(POLICIES[policy](answer_by="active"), closed)  # type: ignore[call-arg]
    assert writes(play.first, "small", closed)


SHARING = [name for name in POLICIES if name not in ("small-only", "large-only")]


@pytest.mark.parametrize("error", [GONE, Overloaded("busy"), ContextLengthExceeded("full")])
@pytest.mark.parametrize("policy", SHARING)
def test_the_large_model_writes_on_if_the_first_call_fails(policy: str, error: Exception) -> None:
    first = {"large_first": False} if policy == "bild" else {}
    first |= {"large_probability": 0} if policy == "coin" else {}
    play = Play(POLICIES[policy](**first))
    assert play.first.worker == "small"
    assert writes(play(error), "large", TRACE)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


@pytest.mark.parametrize("policy", ["advisor", "bild", "cascade", "learned-gate", "specreason"])
def test_the_large_model_writes_on_if_the_small_one_has_no_room(policy: str) -> None:
    play = Play(POLICIES[policy](**({"large_first": False} if policy == "bild" else {})))  # type: ignore[arg-type]
    assert writes(play(draft("", "length")), "large", TRACE)


@pytest.mark.parametrize("policy", SHARING)
def test_a_pair_that_can_never_do_it_is_refused(policy: str) -> None:
    with pytest.raises(Unsupported, match="another vocabulary"):
        Play(POLICIES[policy]())(Unsupported("another vocabulary"))
