"""The parameters of vLLM's requests, and the tokens of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from orchestrator.errors import InvalidRequest, WorkerError
from orchestrator.types import Sampling
from workers.model.sampling import nan_logits
from workers.vllm.scheduler import MOST_CACHED

SHOWN = 64
"""Tokens whose log-probabilities are requested if the likeliest one is not enough."""
MAX_TEMPERATURE = 2.0
"""The highest that vLLM takes."""


def request_parameters(sampling: Sampling, **fields: Any) -> SamplingParams:
    """Return a request's parameters; raise InvalidRequest for a temperature above vLLM's."""
    if sampling.temperature > MAX_TEMPERATURE:
        raise InvalidRequest(
            f"temperature must be at most {MAX_TEMPERATURE:g} where vLLM runs the model, not "
            f"{sampling.temperature:g}",
            param="temperature",
        )
    return SamplingParams(
        temperature=0.0 if sampling.is_greedy else sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        detokenize=False,
        ignore_eos=True,  # the ids that end a text are ours to know
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,  # these are made for one request
        **fields,
    )


def prompt_scores(first: int, shown: int) -> dict[str, Any]:
    """Return the fields for log-probabilities of a prompt's ids from position `first` on.

    Those of an id come from reading the id before it.
    """
    return {
        "prompt_logprobs": shown,
        "skip_reading_prefix_cache": False,
        "flat_logprobs": True,
        "extra_args": {MOST_CACHED: max(0, first - 1)},
    }


def made_tokens(output: RequestOutput) -> list[tuple[int, Mapping[int, float]]]:
    """Return each token made, and the log-probabilities shown at its position."""
    completion = output.outputs[0]
    positions = [_values(completion.logprobs[i]) for i in range(len(completion.logprobs))]
    return list(zip(completion.token_ids, positions, strict=True))


def prompt_logprobs(
    output: RequestOutput, ids: Sequence[int], part: slice
) -> list[tuple[float, Mapping[int, float]]]:
    """Return the log-probability of each id in `part` of the prompt, and those at its position.

    The first rows may be missing: those of ids that vLLM did not read, or that the scheduler left
    out. One empty row precedes the others.

    Raises:
        WorkerError: vLLM took some of them from its cache, and so does not know them.
    """
    if part.start >= part.stop:
        return []
    rows, cached = output.prompt_logprobs, output.num_cached_tokens or 0
    if rows is None or cached > part.start - 1:
        raise WorkerError(
            f"expected the log-probabilities of the prompt from position {part.start} on, but vLLM "
            f"took {cached} tokens from its cache: is its scheduler another one?"
        )
    unread = len(ids) - len(rows)
    found: list[tuple[float, Mapping[int, float]]] = []
    for position in range(part.start, part.stop):
        logprobs = _values(rows[position - unread])
        if ids[position] not in logprobs:
            raise WorkerError(f"vLLM gave no log-probability of the prompt's position {position}")
        found.append((logprobs[ids[position]], logprobs))
    return found


def _values(logprobs: Any) -> dict[int, float]:
    values = {token: value.logprob for token, value in logprobs.items()}
    if any(map(isnan, values.values())):
        raise nan_logits()
    return values
