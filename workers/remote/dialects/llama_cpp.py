"""llama.cpp's server: it returns ids and bytes inside log-probabilities, but none of a prompt.

It sends a chunk for each token that does not end inside a character, and does not say at which stop
string it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.types import Constraint, Sampling
from workers.remote.dialects.openai import OpenAI
from workers.remote.protocol import (
    Token,
    Vocabulary,
    distribution,
    logprob_of,
    token_id,
    whole_choice,
)

SAMPLERS = ["temperature", "top_k", "top_p"]
"""The sampling stages to use, in Baton's order; the server's defaults would also cut the
distribution (`top_k` 40, `min_p` 0.05)."""


class LlamaCpp(OpenAI):
    name = "llama.cpp"
    returns_ids = True
    most_logprobs = 1000
    token_a_chunk = True
    left_out = 3  # the tokens of an unfinished character
    names_stop = False

    def cuts(self, sampling: Sampling) -> dict[str, Any]:
        top_k = sampling.top_k or -1  # 0 is off as well, but smg's gateway refuses it
        return {"top_k": top_k, "top_p": sampling.top_p, "samplers": SAMPLERS}

    def effort_fields(self, level: Mapping[str, str]) -> dict[str, Any]:
        return {"chat_template_kwargs": dict(level)}

    def prompt_logprob_fields(self, top: int) -> dict[str, Any]:
        return {}

    def constrained(self, constraint: Constraint) -> dict[str, Any] | None:
        if constraint.kind != "json_schema":
            return None
        return {"json_schema": json.loads(constraint.source)}

    def tokens(self, choice: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Token, ...] | None:
        content = _content(choice)
        return tuple(map(_token, content)) if content else None

    def first_logprobs(
        self, answer: Mapping[str, Any], vocabulary: Vocabulary, echoed: int = 0
    ) -> dict[int, float]:
        content = _content(whole_choice(answer))
        return _logprobs(content[0]) if content else {}


def _content(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entry of each token; empty if an id is missing."""
    content = (choice.get("logprobs") or {}).get("content") or []
    return content if all("id" in item for item in content) else []


def _token(item: Mapping[str, Any]) -> Token:
    """Read a token. A token of the server's draft model has no log-probability, although whole
    answers say 0."""
    top = _logprobs(item)
    logprob = logprob_of(item["logprob"]) if top else None
    shown = bytes(item["bytes"] or ()) if "bytes" in item else None
    return Token(token_id(item["id"]), logprob, top, shown)


def _logprobs(item: Mapping[str, Any]) -> dict[int, float]:
    return distribution(
        (token_id(top["id"]), logprob_of(top["logprob"])) for top in item["top_logprobs"]
    )


LLAMA_CPP: Final = LlamaCpp()
