"""The tokens that end a text by themselves, so that vLLM can stop there."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.types import StopCriteria
from workers.text.boundaries import StepEnd
from workers.text.prompt import PromptRenderer


class TokenEnds:
    """Those of a model's vocabulary. Other ends, as a delimiter of two tokens, are found later."""

    def __init__(self, prompts: PromptRenderer) -> None:
        self._tokenizer = prompts.tokenizer
        self._pieces = self._tokenizer.pieces[: prompts.vocabulary]
        self._delimiting = lru_cache(maxsize=16)(self._find)

    def of(self, criteria: StopCriteria) -> frozenset[int]:
        """Return the ids that hold a delimiter, and the stops that are a token."""
        stops = map(self._tokenizer.encode, criteria.stop)
        alone = {ids[0] for ids in stops if len(ids) == 1 and ids[0] < len(self._pieces)}
        return self._delimiting(criteria.until) | alone

    def _find(self, until: tuple[str, ...]) -> frozenset[int]:
        """Return the ids that end a step after a plain word."""
        marks = [one.encode() for one in until if one]
        found = set()
        for token, piece in enumerate(self._pieces):
            if any(mark in piece for mark in marks):
                text = piece.decode(errors="replace")
                if StepEnd(until, "a").feed(text) is not None:
                    found.add(token)
        return frozenset(found)
