"""What every request for a text may say; everything else is refused by name.

The path's own body is a subclass: `chat_schema`, `completion_schema`, `responses_schema`.

A parameter that changes an answer is honoured or refused, never silently ignored. `UNSUPPORTED`
lists OpenAI's (and a few servers') parameters that Baton does not have, those that matter most to a
client first, each with the values that mean the default: those are honoured by doing nothing.
`HINTS` change no answer (who asks, what to cache, how soon) and pass. A null top-level parameter
means "not given".

What a request does not say of its sampling the deployment does (`Service.sampling`): its file, or
the large model's checkpoint. OpenAI's default is a temperature of 1.

`reasoning_effort` caps the accepted thinking tokens at a share of `max_tokens` (`EFFORT`),
`thinking_token_budget` at a number of its own; of these and `policy.budget` the smallest holds.
Effort `none`, or a budget of 0, is an answer without a thought.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.errors import InvalidRequest
from orchestrator.http.body import parse_object
from orchestrator.types import Constraint, Message, Sampling
from orchestrator.validation import body_path, closest, invalid_request

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT: Final[dict[Effort, float | None]] = {
    "none": None,  # no thought to cap
    "minimal": 1 / 8,
    "low": 1 / 4,
    "medium": 1 / 2,
    "high": None,  # no cap of its own: the policy's
    "xhigh": None,
    "max": None,
}
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
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_stop_str_in_output": (False,),
    "add_special_tokens": (False,),
    "prediction": (),
    "reasoning": (),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "chat_template": (),
    "echo": (False,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    **dict.fromkeys(
        (
            "guided_decoding_backend", "guided_whitespace_pattern", "structural_tag",
            "allowed_token_ids", "logits_processors", "logprob_token_ids", "prompt_logprobs",
            "prompt_embeds", "truncate_prompt_tokens", "repetition_detection", "documents",
            "mm_processor_kwargs", "media_io_kwargs", "cache_salt", "kv_transfer_params",
            "vllm_xargs",
        ),
        (),
    ),
}  # fmt: skip
COMPLETION: Final = "chatcmpl-"
TEXT_COMPLETION: Final = "cmpl-"
RESPONSE: Final = "resp_"
"""Before a trace id each is the id of an answer, as OpenAI's clients show it."""
MOST_LIKELY: Final = 20
"""Of the likeliest tokens at a place: OpenAI's most, and vLLM's unless told otherwise."""
UNSUPPORTED_ITEM: Final = "unsupported_item"
"""The type of an error that says of an item of a list that it cannot be honoured."""
MAX_SEED: Final = 2**63 - 1
"""Workers want a seed that is not negative: these bits of it are enough."""
_LONGEST_NAME: Final = 128
_MOST_NAMES: Final = 16  # in one message
"""Characters of a parameter's name, or of its place, that an error repeats."""


def _listed(stop: object) -> object:
    if not isinstance(stop, str | list):
        raise PydanticCustomError("invalid_type", "must be a string or a list of strings")
    return [stop] if isinstance(stop, str) else stop


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = Field(default=False, description="a hint: changes nothing")


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Choices = Annotated[int, Field(ge=1, lt=2**31)]


R = TypeVar("R", bound="GenerationRequest")


class GenerationRequest(BaseModel):
    """What all bodies that ask for a text have in common, in OpenAI's words and a few of Baton's.

    Attributes:
        hints: parameters of that path that change no answer.
        unsupported: those that Baton does not have, and the values that are harmless.
        question_name: the parameter that holds what is to be answered.
        operation: what is asked for, in OpenTelemetry's words.
        id_prefix: what the ids of its answers begin with.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    hints: ClassVar[frozenset[str]] = HINTS
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED
    question_name: ClassVar[str] = "messages"
    operation: ClassVar[str] = "chat"
    id_prefix: ClassVar[str] = COMPLETION

    model: str = Field(description="a policy, or one of its published versions: NAME@VERSION")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="0 is greedy; none: as the deployment or the large model wants"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="none: the same"
    )
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        default=None, description="0 and -1: off; none: the same"
    )
    seed: _Int64 | None = None
    stop: Annotated[
        list[_Stop],
        Field(max_length=16),
        BeforeValidator(_listed, json_schema_input_type=_Stop | list[_Stop]),
    ] = Field(default_factory=list, description="strings that end the answer; one, or several")
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = Field(
        default=False, description="write to the cap; for load tests of a single model"
    )
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="of thought and answer; the text does not end before, at a stop string neither;"
        " for a single model",
    )
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = Field(
        default=0, description="of a key's requests that wait for a place the lowest is first"
    )
    user: Annotated[str, Field(max_length=256)] | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default_factory=dict, max_length=16)
    )
    policy: dict[str, Any] = Field(
        default_factory=dict, description="the policy's parameters for this request"
    )
    speculation: str | None = Field(
        default=None, description="the large worker's token-level method; none: its default"
    )

    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the body was left out, in words."""
        return self._warnings

    @model_validator(mode="after")
    def _streaming(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise contradiction("stream_options", "only allowed when stream is true")
        return self

    @property
    def cap(self) -> int | None:
        """The cap on thought and answer together, in tokens; None where none was given."""
        raise NotImplementedError

    @property
    def cap_name(self) -> str:
        """The parameter that gives it."""
        return "max_tokens"

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What is to be answered."""
        raise NotImplementedError

    @property
    def conversations(self) -> tuple[tuple[Message, ...], ...]:
        """All that is to be answered, where there may be several."""
        return (self.conversation,)

    @property
    def thinking(self) -> bool:
        """Whether there is to be a thought."""
        return True

    @property
    def constraint(self) -> Constraint | None:
        """What the answer must match."""
        return None if self.tool_use is None else self.tool_use.constraint

    @property
    def tool_use(self) -> Any:
        """The tools that may be called (`tools.ToolUse`); None: this path knows none."""
        return None

    @property
    def choices(self) -> int:
        """How many answers are wanted, in all."""
        return 1

    @property
    def choices_name(self) -> str:
        """The parameter that asks for several."""
        return "n"

    @property
    def alone(self) -> str | None:
        """The parameter that asks for what only a policy of one model can do; None: none does."""
        asked = {"ignore_eos": self.ignore_eos, "min_tokens": self.min_tokens > 0}
        return next((name for name, given in asked.items() if given), None)

    def thinking_cap(self, max_tokens: int) -> int | None:
        """What the request leaves of `max_tokens` for the thought; None: no cap."""
        return None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        options = self.stream_options
        return options is not None and (options.include_usage or options.continuous_usage_stats)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream is to hold the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling(self, default: Sampling) -> Sampling:
        """How tokens are drawn, where the request does not say so as by default."""
        seed = None if self.seed is None else self.seed & MAX_SEED
        return Sampling(
            default.temperature if self.temperature is None else self.temperature,
            default.top_p if self.top_p is None else self.top_p,
            default.top_k if self.top_k is None else max(self.top_k, 0),
            seed,
        )

    @property
    def says_all_of_sampling(self) -> bool:
        """Whether no default counts."""
        return self.temperature == 0 or None not in (self.temperature, self.top_p, self.top_k)


def parse_request(body: bytes, kind: type[R], *, strict: bool = True) -> R:
    """A request from its bytes; unless `strict`, what cannot be honoured is left out and leaves a
    warning, at whatever depth it stands.

    Raises:
        InvalidRequest: not JSON, an unknown key, or a value that cannot be honoured; named.
    """
    given, fields = parse_object(body), kind.model_fields.keys()
    refused = [
        name
        for name, harmless in kind.unsupported.items()
        if name not in fields and given.get(name) is not None
        if not any(_same(given[name], one) for one in (*harmless, *_as_many(name, given)))
    ]
    unknown = sorted(given.keys() - fields - kind.unsupported.keys() - kind.hints)
    given = {name: value for name, value in given.items() if value is not None and name in fields}
    request, within = _validated(kind, given, strict)
    if strict and (refused or unknown or len(within) > 1):
        raise _refusal(refused, [*unknown, *within], fields)
    if isinstance(request, InvalidRequest):
        raise request
    if refused or unknown or within:
        refusal = _refusal(refused, [*unknown, *within], False)
        request._warnings = (f"{refusal.message}, and left out",)
    return request


def _as_many(name: str, given: Mapping[str, Any]) -> tuple[object, ...]:
    """Of a parameter the value that is harmless beside others: all of the best are shown."""
    return (given["n"],) if name == "best_of" and "n" in given else ()


def _validated(
    kind: type[R], given: dict[str, Any], strict: bool
) -> tuple[R | InvalidRequest, list[str]]:
    """The request or what is wrong with it, and the places of what is unknown within its
    parameters: left out unless `strict`, and else told where nothing else is wrong."""
    within: list[str] = []
    while True:
        try:
            return kind.model_validate(given), within
        except InvalidRequest as error:
            return error, within
        except ValidationError as error:
            unknown = _unknown_within(error, given)
            if strict or not (unknown or _items(error)):
                wrong = invalid_request(error, model=kind)
                nothing_else = strict and len(unknown) == error.error_count()
                return wrong, list(map(body_path, unknown)) if nothing_else else within
            within += map(body_path, unknown)
            for place in unknown:
                del _at(given, place[:-1])[place[-1]]
            within += _left_out(error, given)


def _unknown_within(error: ValidationError, given: Any) -> list[tuple[int | str, ...]]:
    """The places of what is unknown in a body, where it can be left out."""
    details = error.errors(include_url=False)
    places = [_written(one["loc"], given) for one in details if one["type"] == "extra_forbidden"]
    return list(dict.fromkeys(place for place in places if place))


def _items(error: ValidationError) -> list[ErrorDetails]:
    """What is said of items that cannot be honoured, the last one first."""
    details = error.errors(include_url=False)
    return [one for one in reversed(details) if one["type"] == UNSUPPORTED_ITEM]


def _left_out(error: ValidationError, given: Any) -> list[str]:
    """The places of items that cannot be honoured, and what they are; they are left out."""
    places = list[str]()
    for one in _items(error):
        *place, last = one["loc"]
        del _at(given, place)[last]
        places.insert(0, f"{body_path(one['loc'])} ({one['ctx']['kind']})")
    return places


def _written(loc: Sequence[int | str], given: Any) -> tuple[int | str, ...]:
    """Pydantic's place of a key as the client wrote it, without the branches of unions, which
    nobody did; empty where there is no such key."""
    place: list[int | str] = []
    for part in loc:
        is_key = part in given if isinstance(given, dict) else isinstance(part, int)
        if is_key:
            place.append(part)
            given = _at(given, [part])
    return tuple(place) if is_key and isinstance(loc[-1], str) else ()


def _at(value: Any, place: Sequence[int | str]) -> Any:
    """What stands at a place in a JSON value; None where there is no such place."""
    for part in place:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return None
    return value


def _refusal(
    refused: Sequence[str], unknown: Sequence[str], known: Collection[str] | Literal[False]
) -> InvalidRequest:
    """One error for all parameters that cannot be honoured, the most telling first.

    `known` are the names of which an unknown one may be a misspelling; False: none is proposed.
    """
    first = (*refused, *unknown)[0][:_LONGEST_NAME]
    said = [
        _named_together(names) + f" {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((refused, "not supported here"), (unknown, "unknown here"))
        if names
    ]
    code = "unsupported_parameter" if refused else "unknown_parameter"
    meant = closest(unknown[0], known) if known and len(unknown) == 1 else ""
    return InvalidRequest("; ".join(said) + meant, param=first, code=code)


def _named_together(names: Sequence[str]) -> str:
    """Names for an error; of many those that differ by an index alone are one."""
    if len(names) > _MOST_NAMES:
        names = list(dict.fromkeys(re.sub(r"\[\d+\]", "[*]", name) for name in names))
    more = len(names) - _MOST_NAMES
    said = ", ".join(name[:_LONGEST_NAME] for name in names[:_MOST_NAMES])
    return f"{said} and {more} more" if more > 0 else said


def contradiction(place: str, message: str) -> InvalidRequest:
    """The error of a body whose parts do not go together, at that place."""
    return InvalidRequest(f"{place}: {message}", param=place, code="invalid_value")


def _same(value: object, allowed: object) -> bool:
    # True == 1 in Python, yet n: true is no number.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
