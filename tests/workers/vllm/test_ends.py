"""Which tokens vLLM may end a step with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.types import StopCriteria
from workers.vllm.ends import TokenEnds

PIECES = [b"\n", b"\n\n", b".\n\n", b":\n\n", b" \n\n\n", b"a", b"END", b"!\n\n"]


def encode(text: str) -> tuple[int, ...]:
    return (PIECES.index(text.encode()),) if text.encode() in PIECES else (5, 5)


@pytest.fixture
def ends() -> TokenEnds:
    tokenizer: Any = SimpleNamespace(pieces=PIECES, encode=encode)
    prompts: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=len(PIECES) - 1)
    return TokenEnds(prompts)


def test_tokens_that_hold_a_delimiter_end_a_step(ends: TokenEnds) -> None:
    """But for one after a colon, and one that the model has not."""
    assert ends.of(StopCriteria(9, ("\n\n",))) == {1, 2, 4}


def test_a_stop_that_is_a_token_ends_a_text(ends: TokenEnds) -> None:
    assert ends.of(StopCriteria(9, stop=("END", "no token", "!\n\n"))) == {6}


def test_a_text_without_delimiters_has_no_such_end(ends: TokenEnds) -> None:
    assert ends.of(StopCriteria(9)) == set()
    assert ends.of(StopCriteria(9, ("",))) == set()
