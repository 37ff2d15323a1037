"""vLLM, and proxies and routers before it: token ids in, token ids out.

It returns ids (`return_token_ids`), in older versions inside its log-probabilities
(`return_tokens_as_token_ids`: "token_id:42"). It stops at `stop_token_ids` and returns the reason
(`stop_reason`), but not before `min_tokens`. It can draw one of a few tokens (`allowed_token_ids`)
and return its log-probability among all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from orchestrator.types import Sampling
from workers.remote.dialects.openai import OpenAI
from workers.remote.protocol import (
    ID_NAME,
    Token,
    Vocabulary,
    distribution,
    logprob_of,
    logprob_rows,
    token_id,
    whole_choice,
)
from workers.text.continuation import Continuation
from workers.text.tokenizer import Tokenizer

NEUTRAL = {
    "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""Switches off a checkpoint's sampling settings that Baton does not have."""


class Vllm(OpenAI):
    name = "vLLM"
    id_fields: ClassVar = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    returns_ids = True
    restricts = True

    def cuts(self, sampling: Sampling) -> dict[str, Any]:
        """Return every setting: vLLM takes missing ones from `generation_config.json`."""
        # 0 is off as well, but smg's gateway refuses it.
        return NEUTRAL | {"top_k": sampling.top_k or -1, "top_p": sampling.top_p}

    def prompt_logprob_fields(self, top: int) -> dict[str, Any]:
        return {"prompt_logprobs": top}

    def stop_fields(
        self, text: Continuation, tokenizer: Tokenizer, *, steps: bool = True
    ) -> dict[str, Any]:
        """Return the fields; with `min_tokens` the server suppresses `stop_token_ids` until then,
        and stop strings are found here."""
        if not text.criteria.min_tokens:
            return super().stop_fields(text, tokenizer, steps=steps)
        ends = set(text.ends) - ({tokenizer.close_id} if text.closing else set())
        least = min(text.criteria.min_tokens, text.max_tokens)
        return {"min_tokens": least, "stop_token_ids": sorted(ends)}

    def owner_fields(self, owner: str) -> dict[str, Any]:
        return {"cache_salt": owner} if owner else {}

    def effort_fields(self, level: Mapping[str, str]) -> dict[str, Any]:
        return {"chat_template_kwargs": dict(level)}

    def tokens(self, choice: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[Token, ...] | None:
        rows, ids = logprob_rows(choice), choice.get("token_ids")
        if ids is None and rows.names and all(name.startswith(ID_NAME) for name in rows.names):
            ids = [vocabulary.id(name) for name in rows.names]
        if ids is None:
            return None
        none = [None] * len(ids)
        tops = rows.tops if len(rows.tops) == len(ids) else none
        values = rows.values if len(rows.values) == len(ids) else none
        return tuple(
            Token(
                token_id(i), None if value is None else logprob_of(value), vocabulary.logprobs(top)
            )
            for i, value, top in zip(ids, values, tops, strict=True)
        )

    def prompt_length(self, ids: Sequence[int]) -> int:
        return 0

    def prompt_logprobs(
        self, answer: Mapping[str, Any], ids: Sequence[int], last: int, vocabulary: Vocabulary
    ) -> list[tuple[float, dict[int, float]]]:
        positions = whole_choice(answer)["prompt_logprobs"]
        if len(positions) != len(ids):
            raise ValueError("log-probabilities of another prompt")
        start = len(ids) - last
        tops = [
            distribution((int(i), logprob_of(item["logprob"])) for i, item in top.items())
            for top in positions[start:]
        ]
        return [(top[i], top) for i, top in zip(ids[start:], tops, strict=True)]


VLLM: Final = Vllm()
