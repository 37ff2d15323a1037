"""The body of `POST /v1/completions`: texts, or token ids, that one model continues as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field, PlainValidator, model_validator

from orchestrator.errors import InvalidRequest
from orchestrator.http.schemas import (
    HINTS,
    MOST_LIKELY,
    TEXT_COMPLETION,
    UNSUPPORTED,
    Choices,
    GenerationRequest,
    contradiction,
)
from orchestrator.http.structured_outputs import StructuredOutputs
from orchestrator.types import Constraint, Message


def _prompts(given: object) -> tuple[str | tuple[int, ...], ...]:
    """A prompt, or those of a list; everything else is refused here, since of the alternatives of a
    union pydantic names each."""
    listed = given if isinstance(given, list) and given and not _is_id(given[0]) else [given]
    places = [f"prompt[{i}]" for i in range(len(listed))] if len(listed) > 1 else ["prompt"]
    return tuple(map(_prompt, listed, places))


def _prompt(given: object, place: str) -> str | tuple[int, ...]:
    if given in ("", []):
        raise contradiction(place, "must not be empty")
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(map(_is_id, given)):
        return tuple(given)
    said = "must be a string or an array of token ids"
    raise InvalidRequest(f"{place}: {said}", param=place, code="invalid_type")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


class CompletionRequest(StructuredOutputs, GenerationRequest):
    """A text completion, by a policy of one model: no chat template, no thought, no steps."""

    hints: ClassVar[frozenset[str]] = HINTS
    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        **UNSUPPORTED,
        "add_special_tokens": (True,),  # such as begin a text
        "suffix": ("",),
        "thinking_token_budget": (),
        "top_logprobs": (0,),
        "prompt_logprobs": (0,),
    }

    question_name: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"
    id_prefix: ClassVar[str] = TEXT_COMPLETION

    prompt: Annotated[
        tuple[str | tuple[int, ...], ...],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[int] | list[str] | list[list[int]]
        ),
    ] = Field(description="a text, or the ids of its tokens; or several of them")
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        default=16, description="of the continuation; 0, with echo: the prompt alone"
    )
    n: Choices = Field(default=1, description="how many answers to give to each prompt")
    echo: bool = Field(default=False, description="show the prompt before its continuation")
    logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELY)] | None = Field(
        default=None,
        description="log-probabilities of the tokens, and of so many of the likeliest in the place "
        "of each",
    )

    @model_validator(mode="after")
    def _whole_only(self) -> CompletionRequest:
        for name, given in (("echo", self.echo), ("logprobs", self.logprobs is not None)):
            if given and self.stream:
                raise contradiction(name, "only allowed when stream is false")
        if not (self.max_tokens or self.echo):
            raise contradiction("max_tokens", "must be at least 1, or 0 where echo is true")
        if self.logprobs is not None and self.stop:
            raise contradiction("logprobs", "only allowed without stop")
        return self

    @property
    def choices(self) -> int:
        return self.n * len(self.prompt)

    @property
    def choices_name(self) -> str:
        return "n" if len(self.prompt) == 1 else "prompt"

    @property
    def cap(self) -> int:
        return self.max_tokens

    @property
    def constraint(self) -> Constraint | None:
        return self.form and replace(self.form, exact=True)

    @property
    def thinking(self) -> bool:
        return False

    @property
    def alone(self) -> str:
        return "model"

    @property
    def conversation(self) -> tuple[Message, ...]:
        return self.conversations[0]

    @property
    def conversations(self) -> tuple[tuple[Message, ...], ...]:
        return tuple(
            (Message("prompt", one) if isinstance(one, str) else Message("prompt", "", one),)
            for one in self.prompt
        )
