"""What a method cannot be built with is refused, and the message names the parameter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.speculation.loops import decoder
from workers.speculation import METHODS

WHOLE, FRACTION = "must be a whole number of at least", "must be a number from 0 to 1, not"
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "chain": [
        ({"gamma": -1}, f"gamma {WHOLE} 0, not -1"),
        ({"gamma": "4"}, f"gamma {WHOLE} 0, not '4'"),
        ({"gamma": 500}, "gamma 500: a tree of 501 nodes"),
    ],
    "lookup": [
        ({"shortest": 0}, f"shortest {WHOLE} 1"),
        ({"shortest": 4, "longest": 3}, f"longest {WHOLE} 4"),
        ({"per_match": -1.0}, "per_match must be a number of at least 0, not -1.0"),
    ],
    "spectr": [
        ({"count": 0}, f"count {WHOLE} 1"),
        ({"count": 40, "gamma": 9}, "count 40 and gamma 9"),
    ],
    "recursive-c": [
        ({"branching": [2, 0]}, f"branching {WHOLE} 1"),
        ({"branching": [9, 9, 9]}, "820 nodes"),
        ({"branching": 3}, "branching must be a list of whole numbers, not 3"),
    ],
    "recursive-s": [
        ({"width": 0}, f"width {WHOLE} 1"),
    ],
    "kangaroo": [
        ({"gamma": 500}, "gamma 500: a tree of 501 nodes"),
        ({"threshold": 1.5}, f"threshold {FRACTION} 1.5"),
        ({"exit_layer": 0}, f"exit_layer {WHOLE} 1, not 0"),
    ],
    "reflective": [
        ({"alpha": -0.1}, f"alpha {FRACTION} -0.1"),
        ({"alpha": float("nan")}, f"alpha {FRACTION} nan"),
        ({"alpha": "0.3"}, f"alpha {FRACTION} '0.3'"),
        ({"alpha": True}, f"alpha {FRACTION} True"),
        ({"thoughts_only": "yes"}, "thoughts_only must be true or false, not 'yes'"),
        ({"base": "magic"}, "base must be a lossless method, not 'magic'"),
        ({"base": "reflective"}, "base must be a lossless method, not 'reflective'"),
        ({"base": "kangaroo"}, "base kangaroo scores its drafts in a separate pass"),
        ({"base": "vanilla", "draft": None}, "unexpected keyword argument 'gamma'"),
        ({"gamma": 0}, "base chain drafts nothing"),
        ({"gamma": -1}, f"gamma {WHOLE} 0, not -1"),
        ({"gamma": 62}, "a prompt of 3 tokens: a tree of 127 nodes"),
        ({"prompt": [1] * 200}, "a prompt of 200 tokens: a tree of"),
        ({"prompt": []}, "prompt must not be empty"),
        ({"prompt": [400]}, "prompt must be a text or token ids below 400"),
        ({"prompt": 7}, "prompt must be a text or token ids below 400"),
        ({"prompt": "Check:"}, "prompt must be token ids where there is no tokenizer"),
    ],
    "relaxed": [
        ({"delta": -0.1}, f"delta {FRACTION} -0.1"),
        ({"top_k": 2.5}, f"top_k {WHOLE} 1, not 2.5"),
        ({"thoughts_only": 1}, "thoughts_only must be true or false, not 1"),
        ({"base": "vanilla"}, "base vanilla verifies no drafts by itself"),
        ({"base": "auto"}, "base auto verifies no drafts by itself"),
    ],
    "auto": [
        ({"candidates": ["nothing"]}, "no candidate 'nothing'; there are vanilla"),
        ({"candidates": ["auto"]}, "no candidate 'auto'"),
        ({"candidates": []}, r"candidates must be a list of methods, not \[\]"),
        ({"candidates": "chain"}, "candidates must be a list of methods, not 'chain'"),
        ({"candidates": [{"method": "chain", "gamma": 3}]}, "auto chooses gamma, from lengths"),
        ({"lengths": [0]}, f"lengths {WHOLE} 1, not 0"),
        ({"lengths": 4}, "lengths must be a list of whole numbers, not 4"),
        ({"lengths": [500]}, "a tree of 501 nodes"),
    ],
}
GIVEN: dict[str, dict[str, Any]] = {
    "lookup": {},
    "kangaroo": {},
    "reflective": {"draft": "other", "gamma": 3, "prompt": [17, 4, 99]},
    "relaxed": {"draft": "other", "gamma": 3},
}


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [(method, *case) for method, cases in WRONG.items() for case in cases],
)
def test_a_wrong_parameter_is_named(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        decoder(method, GIVEN.get(method, {"draft": "other"}) | options)


def test_a_draft_model_with_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="the draft model knows 390 tokens, the target 400"):
        decoder("chain", {"draft": "other"}, padded=-10)


def test_auto_refuses_a_lossy_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["lookup"], "lossless", False)
    with pytest.raises(ValueError, match="lookup is lossy"):
        decoder("auto", {"candidates": ["lookup"]})
