"""The gate's signals and what it makes of them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log
from typing import get_args

import pytest
from pydantic import ValidationError

from orchestrator.types import Message, Segment, Transcript, Verification
from policies.gate import (
    CAP,
    DraftSignal,
    Gate,
    LogisticModel,
    ReadingSignal,
    draft_signals,
    probability,
    reading_signals,
)

ASKED = Transcript((Message("user", "Add 12, 30 and 5."),))
STEP = Segment("small", "12+30=42.\n\n", (1, 2, 3, 4), (-1.0, -0.5, -0.2, -0.1))


def test_signals_of_a_first_step() -> None:
    signals = draft_signals(ASKED, STEP)
    assert signals["first"] == 1.0  # apart: how a step begins is style
    assert (signals["worst"], signals["second"], signals["last"]) == (0.5, 0.2, 0.1)
    assert signals["mean"] == pytest.approx(1.8 / 4)
    assert signals["doubt"] == pytest.approx(log(1 - exp(-0.5)))
    assert (signals["tokens"], signals["step"], signals["ending"]) == (log(4), 0.0, 0.0)
    assert signals["copied"] == pytest.approx(log(3))  # 12 and 30
    assert signals["made"] == pytest.approx(log(2))  # 42
    assert signals["left"] == 0.0  # it makes a number
    assert signals["repeated"] == 0.0


def test_a_conclusion_that_leaves_a_number_out_shows_it() -> None:
    after = ASKED.extend(STEP)
    early = Segment("small", "So we get 42.", (1, 2), (-0.7, -0.1), finish="think_end")
    signals = draft_signals(after, early)
    assert (signals["made"], signals["left"], signals["ending"]) == (
        0.0,
        pytest.approx(log(2)),
        1.0,
    )  # the 5
    whole = after.extend(replace(STEP, text="42+5=47.\n\n"))
    assert draft_signals(whole, replace(early, text="So we get 47."))["left"] == 0.0
    assert draft_signals(after, STEP)["repeated"] == 1.0


@pytest.mark.parametrize(
    "parts",
    [
        ("12+30=42.\n\n", "42*2=84.\n\n"),  # as a policy that judges steps has them recorded
        ("12+30=4", "2.\n", "\n42*", "2=84.\n\n"),  # as corrections leave them
        ("12+30=42.\n\n42*2=84.\n\n",),  # as the large model writes several
    ],
)
def test_the_same_text_gives_the_same_signals_however_it_is_cut(parts: tuple[str, ...]) -> None:
    before = ASKED
    for part in parts:
        before = before.extend(replace(STEP, text=part))
    signals = draft_signals(before, replace(STEP, text="42*2=84.\n\n"))
    assert signals["step"] == pytest.approx(log(3))
    assert (signals["made"], signals["copied"]) == (0.0, pytest.approx(log(4)))  # 42, 2 and 84
    assert signals["repeated"] == 1.0


def test_a_draft_behind_a_correction_goes_on_with_its_step() -> None:
    cut = ASKED.extend(replace(STEP, text="12+30=4"))
    rest = draft_signals(cut, replace(STEP, text="2.\n\n"))
    whole = draft_signals(ASKED, STEP)
    assert all(rest[name] == whole[name] for name in ("step", "copied", "made", "left"))
    again = ASKED.extend(STEP).extend(replace(STEP, text="12+30=4"))
    assert draft_signals(again, replace(STEP, text="2.\n\n"))["repeated"] == 1.0


def test_only_the_last_steps_are_searched() -> None:
    long = ASKED
    for number in range(100, 120):
        long = long.extend(replace(STEP, text=f"{number}.\n\n"))
    assert draft_signals(long, replace(STEP, text="100.\n\n"))["made"] == pytest.approx(log(2))
    assert draft_signals(long, replace(STEP, text="119.\n\n"))["made"] == 0.0


def test_what_is_impossible_or_missing_stays_finite() -> None:
    signals = draft_signals(ASKED, replace(STEP, logprobs=(-inf, -inf), tokens=(1, 2)))
    assert (signals["first"], signals["worst"]) == (CAP, CAP)
    assert draft_signals(ASKED, replace(STEP, logprobs=(0.0,), tokens=(1,)))["worst"] == 0.0
    read = reading_signals(Verification((inf,), (1, 1), ending=inf), None)
    assert (read["read_first"], read["read_ending"], read["draft"]) == (CAP, CAP, 0.0)


def test_signals_of_a_reading() -> None:
    verification = Verification(
        (2.0, 0.1, 3.0, 0.5), (0,) * 5, pieces=("So", "7", " is", "8"), ending=0.25
    )
    signals = reading_signals(verification, -1.5)
    assert signals["draft"] == -1.5
    assert (signals["read_first"], signals["read_worst"], signals["read_second"]) == (2.0, 3.0, 0.5)
    assert (signals["read_number"], signals["read_ending"]) == (0.5, 0.25)
    assert signals["read_mean"] == pytest.approx(5.6 / 4)


def test_every_named_signal_is_there() -> None:
    assert set(draft_signals(ASKED, STEP)) == set(get_args(DraftSignal))
    reading = reading_signals(Verification((0.1,), (0, 0)), 0.0)
    assert set(reading) == set(get_args(ReadingSignal))


def test_a_gate_is_a_sum_of_weighed_signals() -> None:
    model = LogisticModel[DraftSignal](bias=-2.0, weights={"worst": 2.0, "step": 1.0})
    reading = LogisticModel[ReadingSignal](bias=0.0, weights={"draft": 0.5})
    gate = Gate(draft=model, reading=reading)
    assert gate.of_draft(ASKED, STEP) == pytest.approx(-1.0)
    assert gate.of_reading(Verification((0.1,), (0, 0)), -1.0) == -0.5
    assert Gate().of_draft(ASKED, STEP) is None  # without a model nothing is known of a draft


def test_a_curve_says_what_a_sum_was_worth() -> None:
    curve = ((-2.0, -4.0), (0.0, -3.0), (2.0, 1.0))
    model = LogisticModel[ReadingSignal](bias=0.0, weights={"draft": 1.0}, curve=curve)
    worth = [model.logit({"draft": x}) for x in (-9.0, -2.0, -1.0, 0.0, 1.5, 2.0, 9.0)]
    assert worth == [-4.0, -4.0, -3.5, -3.0, 0.0, 1.0, 1.0]
    one = LogisticModel[ReadingSignal](bias=0.0, weights={}, curve=((1.0, -2.0),))
    assert one.logit({}) == -2.0


def test_probabilities_do_not_overflow() -> None:
    assert probability(0.0) == 0.5
    assert probability(2.0) == pytest.approx(1 - probability(-2.0))
    assert (probability(1e4), probability(-1e4)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "data",
    [
        {"draft": {"bias": 0, "weights": {"mood": 1}}},
        {"draft": {"bias": 0, "weights": {"read_worst": 1}}},
        {"reading": {"bias": 0, "weights": {"worst": 1}}},
        {"draft": {"bias": 0, "weights": {"worst": 1e308}}},
        {"draft": {"bias": inf, "weights": {}}},
        {"draft": {"bias": 0, "weights": {"worst": "high"}}},
        {"draft": {"bias": 0, "weights": {}, "extra": 1}},
        {"draft": {"bias": 0, "weights": {}, "curve": [[0, 0], [0, 1]]}},
        {"draft": {"bias": 0, "weights": {}, "curve": [[0, 0], [1, -1]]}},
        {"judge": {}},
    ],
)
def test_a_gate_that_means_nothing_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Gate.model_validate(data)
