"""Texts held to a grammar: which tokens may come next, by the library llguidance.

A constraint becomes a grammar in Lark's notation over bytes, so it does not matter into which
tokens a text is cut. The white space before an answer, which nobody is shown, is free: models are
trained to begin with some. JSON is written on one line, with a blank behind commas and colons: a
small model that may write any white space between two values writes nothing else any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.types import Constraint
from workers.text.tokenizer import Tokenizer

JSON_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_SOURCE: Final = 1 << 17  # characters of a grammar
_LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)


def lark(constraint: Constraint) -> str:
    """The grammar of an answer.

    Raises:
        InvalidRequest: the source is none.
    """
    if len(constraint.source) > MAX_SOURCE:
        raise InvalidRequest(
            f"the grammar has {len(constraint.source)} characters; at most {MAX_SOURCE} are allowed"
        )
    match constraint.kind:
        case "json_schema":
            body = json_rule(json.loads(constraint.source))
        case "regex":
            body = f"/{_escaped(constraint.source)}/"
        case "grammar":
            return constraint.source
        case "tools":
            raise ConfigError("a worker turns tools into a grammar by its model's own format")
    return f"start: WHITE? body\nbody: {body}\nWHITE: /[ \\n]{{1,4}}/\n"


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a schema."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": JSON_LAYOUT}
    return f"%json {json.dumps(schema)}"


def check(constraint: Constraint) -> None:
    """Refuse what is no grammar, or is none that can be held to.

    Raises:
        InvalidRequest: what is wrong, as the library says it.
    """
    if fault := LLMatcher.validate_grammar(lark(constraint), limits=_LIMITS):
        if fault.startswith("WARNING"):
            return
        raise InvalidRequest(_first_line(fault))


class Matcher:
    """An answer on its way through a grammar.

    Args:
        state: at the beginning of what is written next.
        stop_token_ids: the ids that end the text: allowed where the grammar lets it end.
        size: of the model's vocabulary; ids that its tokenizer does not have are never allowed.
    """

    def __init__(self, state: LLMatcher, stop_token_ids: Collection[int], size: int) -> None:
        self._state, self._size = state, size
        self._ends = [token for token in stop_token_ids if token < size]

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary] Which tokens may come next.

        Raises:
            InvalidRequest: the grammar is too complex to go on.
        """
        bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        if self._state.is_error():
            raise InvalidRequest(f"the grammar fails: {_first_line(self._state.get_error())}")
        found = np.unpackbits(bits, bitorder="little")[: self._size].astype(bool)
        allowed = np.zeros(self._size, dtype=bool)
        allowed[: len(found)] = found
        allowed[self._ends] = self._state.is_accepting()
        return allowed

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and nothing changed, where it ends the text or is not allowed."""
        if token in self._ends or self._state.is_stopped():
            return False
        return self._state.try_consume_tokens([token]) == 1

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back."""
        self._state.rollback(count)


class GrammarCompiler:
    """Grammars over one tokenizer's vocabulary.

    Args:
        stop_token_ids: the ids that end a text.
        size: of the model's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Collection[int], size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._stop_token_ids = sorted(stop_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._states = lru_cache(maxsize=32)(self._compile)

    def matcher(self, grammar: str, written: Sequence[int]) -> Matcher:
        """The matcher behind the ids that an answer has so far. It takes a while (milliseconds; the
        first one of a large vocabulary a second): call it in a thread.

        Raises:
            InvalidRequest: it is no grammar, or the answer so far does not fit it.
        """
        state = self._states(grammar).deep_copy()
        if state.try_consume_tokens(list(written)) < len(written):
            raise InvalidRequest("the answer so far does not fit the grammar that it is held to")
        return Matcher(state, self._stop_token_ids, self._size)

    def _compile(self, grammar: str) -> LLMatcher:
        if self._vocabulary is None:
            known = [i for i in self._stop_token_ids if i < len(self._tokenizer.pieces)]
            self._vocabulary = LLTokenizer(
                TokenizerWrapper(_Vocabulary(self._tokenizer)), eos_token=known or None
            )
        state = LLMatcher(self._vocabulary, grammar, limits=_LIMITS, log_level=0)
        if state.is_error():
            raise InvalidRequest(_first_line(state.get_error()))
        return state


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.pieces
        self.special_token_ids = sorted(tokenizer.controls)
        self.bos_token_id = None
        self.eos_token_id = tokenizer.eos_id or 0

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._tokenizer.encode(text))


def _escaped(regex: str) -> str:
    """A regular expression between slashes."""
    return regex.replace("/", "\\/").replace("\n", "\\n")


def _first_line(text: str) -> str:
    return " ".join(text.strip().splitlines()[:1])[:300] or "it is not valid"
