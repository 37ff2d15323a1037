"""The body of `POST /v1/completions`: a text, or token ids, that one model continues as it is."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

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


def _prompt(given: object) -> object:
    """One prompt, which may be the only one of a list; everything else is refused here, since of
    the alternatives of a union pydantic names each."""
    prompt = given[0] if isinstance(given, list) and given and not _is_id(given[0]) else given
    if isinstance(given, list) and len(given) > 1 and prompt is not given:
        raise PydanticCustomError(
            "unsupported_parameter", "must be one prompt; send others in requests beside this one"
        )
    if prompt in ("", []):
        raise PydanticCustomError("invalid_value", "must not be empty")
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(_is_id, prompt))):
        raise PydanticCustomError("invalid_type", "must be a string or an array of token ids")
    return prompt


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
        "top_logprobs": (0,),
        "prompt_logprobs": (0,),
    }

    question_name: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"
    id_prefix: ClassVar[str] = TEXT_COMPLETION

    prompt: Annotated[
        str | list[int],
        BeforeValidator(
            _prompt, json_schema_input_type=str | list[int] | list[str] | list[list[int]]
        ),
    ] = Field(description="a text, or the ids of its tokens; a list may hold one of them")
    max_tokens: Annotated[int, Field(ge=1)] = 16
    n: Choices = Field(default=1, description="how many answers to give")
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
        if self.logprobs is not None and self.stop:
            raise contradiction("logprobs", "only allowed without stop")
        return self

    @property
    def choices(self) -> int:
        return self.n

    @property
    def cap(self) -> int:
        return self.max_tokens

    @property
    def constraint(self) -> Constraint | None:
        return self.form

    @property
    def thinking(self) -> bool:
        return False

    @property
    def alone(self) -> str:
        return "model"

    @property
    def conversation(self) -> tuple[Message, ...]:
        if isinstance(self.prompt, str):
            return (Message("prompt", self.prompt),)
        return (Message("prompt", "", tuple(self.prompt)),)
