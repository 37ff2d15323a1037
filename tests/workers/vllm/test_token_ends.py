"""Which tokens vLLM may end a step with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.types import StopCriteria
from workers.vllm.token_ends import TokenEnds

PIECES = [b"\n", b"\n\n", b".\n\n", b":\n\n", b" \n\n\n", b"a", b"END", b"!\n\n"]


def encode(text: str) -> tuple[int, ...]:
    return (PIECES.index(text.encode()),) if text.encode() in PIECES else (5, 5)


@pytest.fixture
def ends() -> TokenEnds:
    tokenizer: Any = SimpleNamespace(pieces=PIECES, encode=encode)
    prompts: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=len(PIECES) - 1)
    return TokenEnds(prompts)


@pytest.mark.parametrize(
    ("criteria", "found"),
    [
        (
            StopCriteria(9, ("\n\n",)),
            {1, 2, 4},
        ),  # not after a colon
        (StopCriteria(9, stop=("END", "no token", "!\n\n")), {6}),
        (StopCriteria(9), set()),
        (StopCriteria(9, ("",)), set()),
    ],
)
def test_the_tokens_that_end_a_text_alone(
    ends: TokenEnds, criteria: StopCriteria, found: set[int]
) -> None:
    assert ends.of(criteria) == found
