"""Dialects of OpenAI's API, one file each: the fields of a request and how its answer is read.

To add one, subclass `openai.OpenAI` in a separate file, and name it here: in `RETURN_IDS` if its
servers return ids of tokens, in `SCORING` if they return log-probabilities of a prompt. The probe
recognizes a dialect by a server's answers, never by its name (`transformers_serve`: by how it
samples). The prompt, and the fields that continue a chat's message, are the same in all
(`RequestBuilder`).

- `openai`: OpenAI's API as it is.
- `vllm`: vLLM, and proxies and routers before it.
- `sglang`: vLLM's fields, and its `/generate`.
- `llama_cpp`: llama.cpp's server.
- `transformers_serve`: `transformers serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.dialects.openai import OPENAI, OpenAI
from workers.remote.dialects.sglang import SGLANG, SGLANG_COMPLETIONS
from workers.remote.dialects.vllm import VLLM
from workers.remote.protocol import Vocabulary, choice_of

RETURN_IDS: Final[tuple[OpenAI, ...]] = (LLAMA_CPP, VLLM)
SCORING: Final[Mapping[OpenAI, tuple[OpenAI, ...]]] = {
    VLLM: (VLLM, SGLANG, SGLANG_COMPLETIONS),
    OPENAI: (OPENAI,),
}
"""From the dialect of the answers to the ways to score a prompt, tried in order. The first that
works is the server's dialect from then on."""


def recognized(answer: Mapping[str, Any], vocabulary: Vocabulary) -> OpenAI:
    """Return the dialect in which an answer holds token ids; OpenAI's if it holds none."""
    choice = choice_of(answer)
    for dialect in RETURN_IDS:
        if choice is not None and dialect.tokens(choice, vocabulary) is not None:
            return dialect
    return OPENAI
