"""Ids and texts beside them, where answers name markers of a thought."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.workers.conftest import make_tokenizer
from workers.remote.agreement import Agreement
from workers.remote.errors import Foreign, Gap
from workers.text.tokenizer import Tokenizer
from workers.text.tokenizer_files import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(folder)
    return load_tokenizer(folder)


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "<think> .. </think><answer>",
        "x</think><",
        "a <</think>/b",
        "</think></thinking",
        "<<think>>",
    ],
)
def test_a_marker_may_be_next_to_a_text_that_begins_like_it(
    text: str, shows: bool, tokenizer: Tokenizer
) -> None:
    """However texts lag behind the ids, and are cut."""
    controls, ids = tokenizer.controls, tokenizer.encode_markup(text)
    assert any(i in controls for i in ids)
    pieces = [tokenizer.pieces[i].decode() if shows or i not in controls else "" for i in ids]
    whole = "".join(pieces)
    for lag, size in product(range(4), range(1, 5)):
        agreement, sent = Agreement(tokenizer), 0
        for made, i in enumerate(ids, start=1):
            agreement.made(i)
            if made % size == 0 or made == len(ids):
                known = len("".join(pieces[:made])) - (lag if made < len(ids) else 0)
                agreement.shown(whole[sent : max(sent, known)])
                sent = max(sent, known)
        assert sent == len(whole)


def test_text_that_no_id_spells_is_found_beside_markers(tokenizer: Tokenizer) -> None:
    agreement = Agreement(tokenizer)
    with pytest.raises(Gap):
        agreement.shown("</think>12")
    agreement = Agreement(tokenizer)
    for i in tokenizer.encode("34"):
        agreement.made(i)
    with pytest.raises(Foreign):
        agreement.shown("</think>12")
