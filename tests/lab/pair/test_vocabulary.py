"""The tokenizer: lossless, digits alone, control tokens only by id."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from deploy.lab.pair import documents
from deploy.lab.pair.vocabulary import CONTROL, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    out: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.from_file(str(train_tokenizer(documents.texts(1, 2000), out)))


def test_any_text_survives(tokenizer: Tokenizer) -> None:
    @given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
    def survives(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    survives()


def test_digits_stand_alone_and_control_tokens_are_one_id(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
    for token in CONTROL:
        assert len(tokenizer.encode(token).ids) == 1
    for token in tokenizer.get_vocab():
        assert token in CONTROL or sum(c.isdigit() for c in token) <= 1


def test_the_same_texts_give_the_same_tokenizer(tmp_path: Path) -> None:
    one = train_tokenizer(documents.texts(2, 500), tmp_path / "one").read_bytes()
    two = train_tokenizer(documents.texts(2, 500), tmp_path / "two").read_bytes()
    assert one == two
