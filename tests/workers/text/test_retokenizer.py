"""Text without ids becomes the tokens of the whole text, however it was cut on its way."""

from __future__ import annotations

import random

import pytest

from workers.embedded.checkpoints import resolve
from workers.text.boundaries import StepEnd
from workers.text.detokenizer import Ends
from workers.text.retokenizer import Retokenizer
from workers.text.tokenizer_files import load_tokenizer

TOKENIZER = load_tokenizer(resolve("embedded:small"))
TEXTS = [
    "14*3=42.\n\n42-9=33.\n\nSo the answer is 33.",
    "The answer is \\boxed{33}.",
    "  two spaces, a\ttab \n and\n \n\nmore \n",
    "ein längeres Wort: " + "ä" * 200 + " 漢字かな交じり文 🙂🙂",
    "x" * 64 + " " + "y" * 65,
    "",
    " ",
]


def run(text: str, cuts: random.Random, **options: object) -> tuple[Retokenizer, str | None]:
    made = Retokenizer(TOKENIZER.encode, Ends(**options))  # type: ignore[arg-type]
    deltas, finish, at = [], None, 0
    while at < len(text) and finish is None:
        size = cuts.randint(1, 9)
        finish = made.push(text[at : at + size])
        at += size
        if finish is None:
            deltas.append(made.take())
    deltas.append(made.end())
    given = [delta for delta in deltas if delta is not None]
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
def test_delimiters_stay_and_stops_go(seed: int) -> None:
    cuts = random.Random(seed)
    made, finish = run(TEXTS[0], cuts, step_end=StepEnd(("\n\n",)))
    assert (made.text, finish) == ("14*3=42.\n\n", "until")
    assert tuple(made.tokens) == TOKENIZER.encode("14*3=42.\n\n")
    made, finish = run(TEXTS[0], cuts, step_end=StepEnd(("33",)), stops=[(".\n\n42", "stop")])
    assert (made.text, finish) == ("14*3=42", "stop")
    made, finish = run(TEXTS[0] + "</think>", cuts, stops=[("</think>", "think_end")])
    assert (made.text, finish) == (TEXTS[0], "think_end")
    made, finish = run(" \n a b", cuts, stops=[(" ", "stop")], begins_answer=True)
    assert (made.text, finish) == (" \n a", "stop")
