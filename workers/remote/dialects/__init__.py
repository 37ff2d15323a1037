"""Dialects of OpenAI's API, one file each: the fields of a request and how its answer is read.

To add one, subclass `openai.OpenAI` in a separate file, and name it in `DIALECTS`. The probe sends
the `id_fields` of all dialects and takes the first one that finds ids in the answer, never a
server's name. A server without ids speaks `openai`, or `transformers_serve` if it samples by that
server's field. The prompt, and the fields that continue a chat's message, are the same in all
(`workers/remote/request_builder.py`).

- `openai`: what all share; alone, for servers that return no ids.
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
from workers.remote.dialects.transformers_serve import TRANSFORMERS_SERVE
from workers.remote.dialects.vllm import VLLM
from workers.remote.protocol import Vocabulary, choice_of

DIALECTS: Final[tuple[OpenAI, ...]] = (
    LLAMA_CPP, VLLM, SGLANG, SGLANG_COMPLETIONS, OPENAI, TRANSFORMERS_SERVE,
)  # fmt: skip
"""In the order in which they are tried."""
ID_FIELDS: Final = {name: value for one in DIALECTS for name, value in one.id_fields.items()}


def recognized(answer: Mapping[str, Any], vocabulary: Vocabulary) -> OpenAI:
    """Return the dialect in which an answer holds token ids; OpenAI's if it holds none."""
    choice = choice_of(answer)
    ours = (one for one in DIALECTS if choice and one.tokens(choice, vocabulary) is not None)
    return next(ours, OPENAI)


def scoring(found: OpenAI) -> list[OpenAI]:
    """Return the dialects with the same answers that may score a prompt, in order; the first that
    works is the server's from then on."""
    return [
        one
        for one in DIALECTS
        if isinstance(one, type(found)) and one.returns_ids == found.returns_ids
        if one.prompt_logprob_fields(1)
    ]
