"""SGLang: vLLM's fields, and its own `/generate` for log-probabilities of a step.

`/generate` is beside OpenAI's paths, at the root of the server. From position `logprob_start_len`
it returns the log-probability of each id of the prompt, of the likeliest ids and of those that the
request names; earlier positions come from the cache. (SGLang's completions can only echo the whole
prompt.) Format: docs.sglang.io, "Sampling Parameters" and "Native APIs".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from orchestrator.types import Sampling
from workers.remote.dialects.openai import OpenAI
from workers.remote.dialects.vllm import Vllm
from workers.remote.protocol import ID_NAME
from workers.top_logprobs import choices

PATH = "/generate"


class Sglang(Vllm):
    """SGLang by its own path."""

    name = "SGLang"
    rereads = False

    def score_request(
        self, ids: Sequence[int], start: int | None, top: int, named: Collection[int], owner: str
    ) -> dict[str, Any]:
        """Return a request for one token after a prompt, with log-probabilities at temperature 1.

        Args:
            start: the position after which the prompt's ids are scored; None scores none.
            top: how many of the likeliest ids to return at each position, besides those `named`.
            owner: whose cached prefixes it may share.
        """
        body: dict[str, Any] = {
            "input_ids": list(ids),
            # `as_completion` draws: at a temperature, SGLang would scale the log-probabilities.
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": 1,
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1 if start is None else start,
            "top_logprobs_num": top,
        }
        if named:
            body["token_ids_logprob"] = list(named)
        if owner:
            body["extra_key"] = owner
        return body

    def as_completion(
        self, answer: Mapping[str, Any], ids: Sequence[int], sampling: Sampling
    ) -> dict[str, Any]:
        """Convert the answer to vLLM's at `/completions`, and draw its one token by `sampling`.

        `prompt_logprobs` are None before the position from which they were asked for.

        Raises:
            LookupError, TypeError, ValueError: the answer is not as documented.
        """
        meta = answer["meta_info"]
        after = _position(meta["output_token_logprobs"][0], meta, "output", 0)
        (made,) = choices([after], sampling, len(ids))
        rows = meta.get("input_token_logprobs") or []
        shown: list[Any] = [None] * (len(ids) - len(rows) + 1)
        for index, row in enumerate(rows[1:], start=1):  # the first is not scored
            if row[1] != ids[len(shown)]:
                raise ValueError(f"log-probabilities of id {row[1]}, not of the prompt's")
            position = _position(row, meta, "input", index)
            shown.append({str(i): {"logprob": logprob} for i, logprob in position.items()})
        logprobs = {
            "tokens": [f"{ID_NAME}{made}"],
            "token_logprobs": [after[made]],
            "top_logprobs": [{f"{ID_NAME}{i}": logprob for i, logprob in after.items()}],
        }
        choice: dict[str, Any] = {"text": "", "token_ids": [made], "logprobs": logprobs}
        choice["prompt_logprobs"] = shown if rows else None
        usage = {
            "prompt_tokens": meta.get("prompt_tokens"),
            "completion_tokens": meta.get("completion_tokens"),
            "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")},
        }
        return {"choices": [choice], "usage": usage}


def _position(
    own: Sequence[Any], meta: Mapping[str, Any], part: str, index: int
) -> dict[int, float]:
    """Return log-probabilities by id of one position: its own, the likeliest, and those named."""
    found = {int(own[1]): float(own[0])}
    for kind in ("top", "token_ids"):
        rows = meta.get(f"{part}_{kind}_logprobs") or []
        for logprob, token, *_ in (rows[index] or []) if index < len(rows) else []:
            if logprob is not None:
                found[int(token)] = float(logprob)
    return found


class SglangCompletions(Vllm):
    """SGLang if its own path is closed or another model's: it echoes the whole prompt."""

    name = "SGLang without /generate"
    prompt_logprob_fields = OpenAI.prompt_logprob_fields
    prompt_length = OpenAI.prompt_length
    prompt_logprobs = OpenAI.prompt_logprobs


SGLANG: Final = Sglang()
SGLANG_COMPLETIONS: Final = SglangCompletions()
