"""Word lists: the wordings of a list say the same, with the same numbers in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

from deploy.evaluation.builtin import wordings
from deploy.lab import pair

WORDS = Path(wordings.__file__).parent / "words"
FILES = [*WORDS.glob("*.yaml"), *(Path(pair.__file__).parent / "words").glob("*.yaml")]
OPTIONAL = {*"NMijcv"}
"""People, things and containers of a story; the value that a reflection may repeat."""
ANY = {"unknown_topic", "wrong"}
"""Lists whose wordings need not have the same placeholders."""


def lists(words: dict[str, Any], place: str = "") -> Iterator[tuple[str, list[str]]]:
    for name, value in words.items():
        if isinstance(value, dict):
            yield from lists(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", [value] if isinstance(value, str) else value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_wordings_of_a_list_have_the_same_placeholders(file: Path) -> None:
    for name, texts in lists(yaml.safe_load(file.read_text())):
        few = file.parent != WORDS or name.startswith(("scenes", "short"))
        assert len(set(texts)) >= (1 if few else 9), name
        assert all(isinstance(text, str) for text in texts), name
        letters = [{one[1] for one in Formatter().parse(text) if one[1]} for text in texts]
        assert name in ANY or len({frozenset(found - OPTIONAL) for found in letters}) == 1, name
