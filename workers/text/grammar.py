"""Texts held to a grammar: finds which tokens may come next, by the library llguidance."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from orchestrator.errors import InvalidRequest
from orchestrator.grammar import LIMITS, lark, reason
from orchestrator.types import Constraint, Transcript
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer


class Matcher:
    """The state of an answer in its grammar, over bytes. If the grammar lets the text end, the
    `stop_token_ids` are allowed; ids of the model's vocabulary without a token never are."""

    def __init__(self, state: LLMatcher, stop_token_ids: Collection[int], size: int) -> None:
        self._state, self._size = state, size
        self._ends = [token for token in stop_token_ids if token < size]

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens may come next, as [vocabulary]; raise InvalidRequest if the grammar
        is too complex to continue."""
        bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise InvalidRequest(f"the grammar fails: {reason(self._state.get_error())}")
        found = np.unpackbits(bits, bitorder="little")[: self._size].astype(bool)
        allowed = np.zeros(self._size, dtype=bool)
        allowed[: len(found)] = found
        allowed[self._ends] = self._state.is_accepting()
        return allowed

    def accept(self, token: int) -> bool:
        """Advance by a token; if it may not come or is the end, change nothing and return False."""
        if token in self._ends or self._state.is_stopped():
            return False
        return self._state.try_consume_tokens([token]) == 1

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back."""
        self._state.rollback(count)


class GrammarCompiler:
    """Compiles grammars over one model's vocabulary of `size` ids."""

    def __init__(self, prompts: PromptRenderer, stop_token_ids: Collection[int], size: int) -> None:
        self._prompts, self._tokenizer, self._size = prompts, prompts.tokenizer, size
        self._stop_token_ids = sorted(stop_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._states = lru_cache(maxsize=32)(self._compile)

    def matcher(self, constraint: Constraint, transcript: Transcript) -> Matcher:
        """Return the matcher after the answer so far. Call it in a thread: it takes milliseconds,
        the first one for a large vocabulary a second.

        Raises:
            InvalidRequest: the grammar is invalid, or the answer so far does not fit it.
        """
        state = self._states(constraint).deep_copy()
        written = list(self._prompts.answer(transcript))
        if state.try_consume_tokens(written) < len(written):
            raise InvalidRequest("the answer so far does not fit the grammar that it is held to")
        stop_token_ids = self._prompts.ends(self._stop_token_ids, transcript)
        return Matcher(state, stop_token_ids, self._size)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        calls = self._prompts.calls if constraint.kind == "tools" else None
        grammar = lark(constraint, calls, self._prompts.literal)
        if self._vocabulary is None:
            self._vocabulary = LLTokenizer(TokenizerWrapper(_Vocabulary(self._tokenizer)))
        state = LLMatcher(self._vocabulary, grammar, limits=LIMITS, log_level=0)
        if state.is_error():
            raise InvalidRequest(reason(state.get_error()))
        return state


class _Vocabulary:
    """A tokenizer with the interface that llguidance expects."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.pieces
        self.special_token_ids = sorted(tokenizer.ends)
        self.bos_token_id = None
        # `Matcher.allowed` allows all ends; the library needs one.
        eos = tokenizer.eos_id
        self.eos_token_id = min(tokenizer.ends, default=0) if eos is None else eos

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._tokenizer.encode(text))
