"""What a request for a text may say; everything else is refused by name.

A parameter that changes an answer is honoured or refused, never silently ignored. `UNSUPPORTED`
lists OpenAI's (and a few servers') parameters that Baton does not have, those that matter most to a
client first, each with the values that mean the default: those are honoured by doing nothing.
`HINTS` change no answer (who asks, what to cache, how soon) and pass. A null top-level parameter
means "not given".

Defaults that differ from OpenAI's: `temperature` is 0 (greedy), because reasoning is more accurate
and steps are repeatable.

`reasoning_effort` caps the accepted thinking tokens at a share of `max_tokens` (`EFFORT`),
`thinking_token_budget` at a number of its own; of these and `policy.budget` the smallest holds.
Effort `none`, or a budget of 0, is an answer without a thought.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from fastapi import Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import RequestRefused
from orchestrator.http.limits import ServiceLimits
from orchestrator.types import Message, Sampling
from orchestrator.validation import body_path, invalid_request

MAX_DEPTH: Final = 32  # levels of nesting of a body
MAX_VALUES: Final = 20_000  # values in a body: bounds the time that validation takes
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
HINTS: Final = frozenset(
    {
        "parallel_tool_calls",  # without tools there are none
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "verbosity",
    }
)
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "prediction": (),
    "reasoning": (),
    "include_reasoning": (True,),
    "chat_template": (),
    "echo": (False,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
}


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: str


def _flatten(content: object) -> object:
    """Text parts as one string, one line each."""
    if not isinstance(content, list):
        if isinstance(content, str):
            return content
        raise PydanticCustomError("invalid_type", "must be a string or an array of text parts")
    if not content:
        raise PydanticCustomError("invalid_value", "must hold at least one part")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
    return "\n".join(TextPart.model_validate(part).text for part in content)


def _role(role: object) -> object:
    if role in ("tool", "function"):
        raise PydanticCustomError("unsupported_parameter", "tools are not supported")
    return "system" if role == "developer" else role


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class ChatMessage(BaseModel):
    """One turn. The fields below `content` let a client send back a reply exactly as it came.

    Earlier reasoning is accepted and not shown to the models again, as reasoning models are
    trained to expect; so is a `name`, for which chat templates have no place. The rest must be
    empty.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(
            _role, json_schema_input_type=Literal["system", "developer", "user", "assistant"]
        ),
    ]
    content: Annotated[str, BeforeValidator(_flatten, json_schema_input_type=str | list[TextPart])]
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    audio: None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class TemplateSettings(BaseModel):
    """`chat_template_kwargs`: the switches by which templates are told to think or not."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    enable_thinking: bool | None = None
    thinking: bool | None = None


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


R = TypeVar("R", bound="GenerationRequest")


class GenerationRequest(BaseModel):
    """What all bodies that ask for a text have in common, in OpenAI's words and a few of Baton's.

    Attributes:
        hints: parameters of that path that change no answer.
        unsupported: those that Baton does not have, and the values that are harmless.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    hints: ClassVar[frozenset[str]] = HINTS
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED

    model: str = Field(description="a policy, or one of its published versions: NAME@VERSION")
    temperature: Annotated[float, Field(ge=0, le=2)] = Field(default=0.0, description="0 is greedy")
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = Field(default=0, description="0 and -1: off")
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
    def thinking(self) -> bool:
        """Whether there is to be a thought."""
        return True

    @property
    def alone(self) -> str | None:
        """The parameter that asks for what only a policy of one model can do; None: none does."""
        return "ignore_eos" if self.ignore_eos else None

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

    @property
    def sampling(self) -> Sampling:
        # Workers want a seed that is not negative; 63 bits of it are enough.
        seed = None if self.seed is None else self.seed & (2**63 - 1)
        return Sampling(self.temperature, self.top_p, max(self.top_k, 0), seed)


class ChatRequest(GenerationRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="the same"
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="cap on the thought, as a share of max_tokens; none: no thought"
    )
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="cap on the thought in tokens; -1: no cap, 0: no thought"
    )
    chat_template_kwargs: TemplateSettings = TemplateSettings()
    continue_final_message: bool = Field(
        default=False, description="the answer goes on with the last message, the assistant's"
    )
    add_generation_prompt: bool = Field(
        default=True, description="the opposite of continue_final_message, where it is given"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        last, place = self.messages[-1], f"messages[{len(self.messages) - 1}]"
        if last.role == "assistant" and not self.continue_final_message:
            raise contradiction(
                "messages",
                "the last message is the assistant's: to have it continued, say "
                "continue_final_message: true; else the user's message must be last",
            )
        if self.continue_final_message and last.role != "assistant":
            raise contradiction("continue_final_message", "the last message is not the assistant's")
        if self.add_generation_prompt == self.continue_final_message and (
            "add_generation_prompt" in self.model_fields_set
        ):
            raise contradiction(
                "add_generation_prompt", "must be the opposite of continue_final_message"
            )
        if not last.content.strip():
            raise contradiction(f"{place}.content", "the question is empty")
        caps = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(caps) > 1:
            raise contradiction("max_completion_tokens", "contradicts max_tokens")
        return self

    @property
    def cap(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def cap_name(self) -> str:
        return "max_completion_tokens" if self.max_tokens is None else "max_tokens"

    @property
    def thinking(self) -> bool:
        template = self.chat_template_kwargs
        switched_off = False in (template.enable_thinking, template.thinking)
        off = switched_off or self.reasoning_effort == "none" or self.thinking_token_budget == 0
        return not (off or self.continue_final_message)

    def thinking_cap(self, max_tokens: int) -> int | None:
        share = EFFORT[self.reasoning_effort] if self.reasoning_effort else None
        caps = [] if share is None else [max(1, int(share * max_tokens))]
        if self.thinking_token_budget is not None and self.thinking_token_budget > 0:
            caps.append(self.thinking_token_budget)
        return min(caps, default=None)

    @property
    def conversation(self) -> tuple[Message, ...]:
        return tuple(Message(message.role, message.content) for message in self.messages)


async def json_body(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body, announced as JSON, of bounded size, and here in time.

    A browser may post forms and plain text to other origins without permission; those are refused.

    Raises:
        InvalidRequest: it is announced as something else.
        RequestRefused: 413, it is too large; 408, it did not arrive in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            "the body must be JSON (Content-Type: application/json)", code="invalid_content_type"
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limits.body_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} s"
        raise RequestRefused(408, message, code="request_timeout") from None
    return bytes(body)


def parse_chat(body: bytes) -> ChatRequest:
    """A chat completion's body; see `parse_request`."""
    return parse_request(body, ChatRequest)


def parse_request(body: bytes, kind: type[R]) -> R:
    """A request from its bytes.

    Raises:
        InvalidRequest: not JSON, an unknown key, or a value that cannot be honoured; named.
    """
    given, fields = parse_object(body), kind.model_fields.keys()
    refused = [
        name
        for name, harmless in kind.unsupported.items()
        if name not in fields and given.get(name) is not None
        if not any(_same(given[name], one) for one in harmless)
    ]
    unknown = sorted(given.keys() - fields - kind.unsupported.keys() - kind.hints)
    if refused or unknown:
        raise _refusal(refused, unknown)
    given = {name: value for name, value in given.items() if value is not None and name in fields}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error) from None


def _refusal(refused: Sequence[str], unknown: Sequence[str]) -> InvalidRequest:
    """One error for all parameters that cannot be honoured, the most telling first."""
    first = (*refused, *unknown)[0][:64]
    said = [
        ", ".join(name[:64] for name in names[:16])
        + f" {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((refused, "not supported here"), (unknown, "unknown here"))
        if names
    ]
    code = "unsupported_parameter" if refused else "unknown_parameter"
    return InvalidRequest("; ".join(said), param=first, code=code)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object whose numbers are finite and whose text is storable Unicode.

    Raises:
        InvalidRequest: anything else.
    """
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        # ValueError: bad UTF-8, bad JSON, NaN or Infinity, a number of thousands of digits.
        at = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"the body is not valid JSON{at}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    _check_values(value)
    return value


def _too_large(limits: ServiceLimits) -> RequestRefused:
    message = f"the body is larger than {limits.body_bytes} bytes"
    return RequestRefused(413, message, code="request_too_large")


def contradiction(place: str, message: str) -> InvalidRequest:
    """The error of a body whose parts do not go together, at that place."""
    return InvalidRequest(f"{place}: {message}", param=place, code="invalid_value")


def _same(value: object, allowed: object) -> bool:
    # True == 1 in Python, yet n: true is no number.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _check_values(root: dict[str, Any]) -> None:
    """Refuse deep or crowded bodies, and text that neither a tokenizer nor a store can hold."""
    todo: list[tuple[object, tuple[int | str, ...]]] = [(root, ())]
    seen = 0
    while todo:
        value, loc = todo.pop()
        seen += 1
        if seen > MAX_VALUES or len(loc) > MAX_DEPTH:
            place = body_path(loc[:1])
            raise InvalidRequest(
                f"{place}: too many values, or nested too deep", param=place, code="invalid_value"
            )
        if isinstance(value, str):
            _check_text(value, loc)
        elif isinstance(value, dict):
            for key, inner in value.items():
                _check_text(key, loc)
                todo.append((inner, (*loc, key)))
        elif isinstance(value, list) and not _are_ids(value):
            todo.extend((inner, (*loc, index)) for index, inner in enumerate(value))


def _are_ids(values: list[object]) -> bool:
    """Whether a list holds token ids alone: checked as a whole, it counts as one value."""
    return all(type(value) is int for value in values)


def _check_text(text: str, loc: tuple[int | str, ...]) -> None:
    try:
        text.encode()
        if "\0" not in text:
            return
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(
        f"{body_path(loc) or 'body'}: holds a NUL or half of a surrogate pair",
        param=body_path(loc) or None,
        code="invalid_value",
    )
