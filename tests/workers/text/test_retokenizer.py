"""Text without ids becomes the tokens of the whole text, however it was cut on its way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from workers.embedded.checkpoints import resolve
from workers.text.boundaries import StepEnd
from workers.text.ends import Ends
from workers.text.retokenizer import Retokenizer
from workers.text.tokenizer_files import load_tokenizer

TOKENIZER = load_tokenizer(resolve("embedded:small"))
STEPS = "14*3=42.\n\n42-9=33.\n\nSo the answer is 33."
TEXTS = [
    STEPS,
    "The answer is \\boxed{33}.",
    "  two spaces, a\ttab \n and\n \n\nmore \n",
    "ein längeres Wort: " + "ä" * 200 + " 漢字かな交じり文 🙂🙂",
    "x" * 64 + " " + "y" * 65,
    "",
    " ",
]


def run(text: str, cuts: random.Random, ends: Ends | None = None) -> tuple[Retokenizer, str | None]:
    made = Retokenizer(TOKENIZER.encode, ends)
    deltas, finish, at = [], None, 0
    while at < len(text) and finish is None:
        size = cuts.randint(1, 9)
        finish = made.push(text[at : at + size])
        at += size
        if finish is None:
            deltas.append(made.take())
    given = [delta for delta in (*deltas, made.end()) if delta is not None]
    assert "".join(delta.text for delta in given) == made.text
    assert [i for delta in given for i in delta.tokens] == made.tokens
    assert TOKENIZER.decode(made.tokens) == made.text
    return made, finish


@pytest.mark.parametrize("text", TEXTS)
def test_the_ids_are_those_of_the_whole_text(text: str) -> None:
    ids = {tuple(run(text, random.Random(seed))[0].tokens) for seed in range(20)}
    assert len(ids) == 1
    if "ää" not in text and "xx" not in text:  # very long words are cut
        assert ids == {TOKENIZER.encode(text)}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("text", "ends", "expected", "finish"),
    [
        (STEPS, {"step_end": ("\n\n",)}, "14*3=42.\n\n", "until"),
        (STEPS, {"step_end": ("33",), "stops": [(".\n\n42", "stop")]}, "14*3=42", "stop"),
        (STEPS + "</think>", {"stops": [("</think>", "think_end")]}, STEPS, "think_end"),
        (" \n a b", {"stops": [(" ", "stop")], "begins_answer": True}, " \n a", "stop"),
    ],
)
def test_delimiters_stay_and_stops_go(
    text: str, ends: dict[str, Any], expected: str, finish: str, seed: int
) -> None:
    step_end = StepEnd(ends.get("step_end", ()))
    made, ended = run(text, random.Random(seed), Ends(**{**ends, "step_end": step_end}))
    assert (made.text, ended) == (expected, finish)
    assert tuple(made.tokens) == TOKENIZER.encode(expected)
