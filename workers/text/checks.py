"""Checks of every call. Errors name the parameter."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import ContextLengthExceeded, InvalidRequest
from orchestrator.types import Sampling
from workers.text.tokenizer import Tokenizer


def check_sampling(sampling: Sampling) -> None:
    """Raise InvalidRequest if a parameter is outside its range."""
    for name, valid, expected in (
        ("temperature", 0 <= sampling.temperature < 1e6, "from 0 to below 1000000"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("top_k", sampling.top_k >= 0, "at least 0"),
    ):
        if not valid:
            value = getattr(sampling, name)
            raise InvalidRequest(f"{name} must be {expected}, not {value}", param=name)


def label_ids(tokenizer: Tokenizer, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the id of each label, or raise InvalidRequest."""
    encoded = [tokenizer.encode(label) for label in labels]
    for label, ids in zip(labels, encoded, strict=True):
        if len(ids) != 1:
            raise InvalidRequest(
                f"the label {label!r} is {len(ids)} tokens of this model, and must be one",
                param="labels",
            )
    if not labels or len(set(encoded)) < len(labels):
        raise InvalidRequest("labels must be different tokens, at least one", param="labels")
    return tuple(ids[0] for ids in encoded)


def answer_reserve(context: int) -> int:
    """Return how many tokens of a context to reserve for the answer during a thought."""
    return min(64, context // 8)


def check_length(length: int, context: int | None, *, at_least: bool = False) -> None:
    """Raise ContextLengthExceeded if `length` tokens (`at_least`: or more) exceed the context."""
    if context is not None and length > context:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {context} tokens, and the prompt has "
            f"{'at least ' if at_least else ''}{length}: shorten the messages",
            param="messages",
            code="context_length_exceeded",
        )
