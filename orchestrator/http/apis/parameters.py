"""The parameters that the APIs share, in OpenAI's words and a few of Baton's.

`UNSUPPORTED` lists parameters of OpenAI and a few servers that Baton does not have, those that
matter most to a client first, each with the values that mean the default: those pass. `HINTS`
change no answer (who asks, what to cache, how soon) and pass. So does null, whatever its name.

The smallest cap on a thought holds: an effort's (`orchestrator.efforts`), `thinking_token_budget`
and `policy.budget`. With effort `none`, or a budget of 0, there is no thought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from orchestrator.efforts import Effort
from orchestrator.http.ask import AskedPolicy
from orchestrator.http.body import Given, Parameters, contradiction
from orchestrator.http.settings import HttpSettings
from orchestrator.types import Constraint, Limits, PartialSampling

HINTS: Final = frozenset({
    "parallel_tool_calls",  # without tools there are none
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "session_id", "store", "verbosity",
})  # fmt: skip
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "logit_bias": ({},),
    **dict.fromkeys(("min_p", "frequency_penalty", "presence_penalty"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("stop_token_ids", "bad_words"), ([],)),
    **dict.fromkeys(
        (
            "use_beam_search", "return_token_ids", "return_tokens_as_token_ids", "echo",
            "include_stop_str_in_output", "add_special_tokens",
        ),
        (False,),
    ),
    **dict.fromkeys(
        (
            "skip_special_tokens", "spaces_between_special_tokens", "include_reasoning",
            "separate_reasoning", "stream_reasoning",
        ),
        (True,),
    ),
    "modalities": (["text"],),
}  # fmt: skip
MOST_LIKELY: Final = 20
"""The most likely tokens per place, at most, that a request may ask for: as OpenAI and vLLM."""


def _only_text(kind: object) -> object:
    if not isinstance(kind, str) or not kind.endswith("text"):
        raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
    return kind


ONLY_TEXT: Final = BeforeValidator(_only_text)
"""Refuses the types of parts that hold no text."""


def joined(part: Any) -> BeforeValidator:
    """Return a validator that reads a text, or joins the `text` of parts by line breaks."""
    parts = TypeAdapter[Any](Annotated[list[part], Field(min_length=1)])

    def read(content: object) -> object:
        if isinstance(content, list):
            return "\n".join(one.text for one in parts.validate_python(content))
        if content is not None and not isinstance(content, str):
            raise PydanticCustomError("invalid_type", "must be a string or an array of text parts")
        return content

    return BeforeValidator(read, json_schema_input_type=str | list[part] | None)


def called_tool(called: Mapping[str, str], call_id: str, place: str) -> str:
    """Return the name of the tool that an earlier call, found by its id, called.

    Raises:
        InvalidRequest: there is no such call; names `place`.
    """
    if call_id not in called:
        raise contradiction(place, "expected the id of a call that was made before")
    return called[call_id]


def _listed(stop: object) -> object:
    if not isinstance(stop, str | list):
        raise PydanticCustomError("invalid_type", "must be a string or a list of strings")
    return [stop] if isinstance(stop, str) else stop


class StreamOptions(Given):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = Field(default=False, description="a hint: changes nothing")


StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Choices = Annotated[int, Field(ge=1, lt=2**31)]


class AnswerRequest(Parameters):
    """What the bodies of all APIs have in common."""

    model: str = Field(description="a policy, or one of its published versions: NAME@VERSION")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="0 is greedy; none: the deployment's or the large model's default"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="none: the same"
    )
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        default=None, description="0 and -1: off; none: the same"
    )
    seed: _Int64 | None = None
    stream: bool = False
    ignore_eos: bool = Field(
        default=False,
        description="write up to the cap, past the model's end; for load tests of a single model",
    )
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="fewest tokens of thought and answer; before, neither the model nor a stop "
        "string ends the text; for a single model",
    )
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = Field(
        default=0, description="the lowest is first among a key's requests that wait for a place"
    )
    policy: dict[str, Any] = Field(
        default_factory=dict, description="the policy's parameters for this request"
    )
    speculation: str | None = Field(
        default=None, description="the large worker's token-level method; none: its default"
    )

    @property
    def sampling(self) -> PartialSampling:
        top_k = None if self.top_k is None else max(self.top_k, 0)
        return PartialSampling(self.temperature, self.top_p, top_k)

    def asked_policy(self, thought_cap: int | None = None) -> AskedPolicy:
        alone = "ignore_eos" if self.ignore_eos else "min_tokens" if self.min_tokens else None
        return AskedPolicy(self.model, self.policy, self.speculation, alone, thought_cap)

    def limits(
        self,
        settings: HttpSettings,
        capped: tuple[str, int | None],
        stop: Sequence[str],
        constraint: Constraint | None,
        *,
        thinks: bool = True,
        effort: Effort | None = None,
    ) -> Limits:
        """Return the limits of each answer; `capped` is the parameter that caps thought and answer
        together, and its value in tokens.

        Raises:
            InvalidRequest: a limit is above the service's, or contradicts another parameter.
        """
        most, (name, cap) = settings.limits, capped
        if cap is not None and cap > most.max_tokens_cap:
            raise contradiction(
                name, f"must be at most {most.max_tokens_cap} (limits.max_tokens_cap)"
            )
        for name, given in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens)):
            if given and constraint is not None:
                raise contradiction(name, "contradicts an answer that must match a form")
        max_tokens = min(most.max_tokens, most.max_tokens_cap) if cap is None else cap
        if self.min_tokens > max_tokens:
            raise contradiction("min_tokens", f"is {self.min_tokens}, above the cap {max_tokens}")
        return Limits(
            max_tokens,
            most.deadline_s,
            tuple(stop),
            thinks and effort != "none",
            self.ignore_eos,
            self.min_tokens,
            constraint,
            complete=most.complete,
            effort="" if effort is None or effort == "none" else effort,
            prices=settings.prices,
        )


def allowed(name: str, answers: int, settings: HttpSettings) -> int:
    """Return the number of answers that a request wants by the parameter `name`.

    Raises:
        InvalidRequest: it is above the service's limits.
    """
    most = min(settings.limits.choices, settings.limits.concurrent)
    if answers > most:
        raise contradiction(
            name, f"this service gives at most {most} answers to a request, not {answers}"
        )
    return answers


class TextRequest(AnswerRequest):
    """What the bodies of OpenAI's APIs have in common."""

    hints = HINTS
    unsupported = UNSUPPORTED

    stop: Annotated[
        list[StopString],
        Field(max_length=16),
        BeforeValidator(_listed, json_schema_input_type=StopString | list[StopString]),
    ] = Field(default_factory=list, description="strings that end the answer; one, or several")
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default_factory=dict, max_length=16)
    )

    @model_validator(mode="after")
    def _streaming(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise contradiction("stream_options", "only allowed when stream is true")
        return self

    @property
    def wants_usage(self) -> bool:
        options = self.stream_options
        return options is not None and (options.include_usage or options.continuous_usage_stats)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream holds the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats
