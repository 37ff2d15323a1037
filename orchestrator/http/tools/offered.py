"""The tools that a request offers, and whether one must be called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from orchestrator.grammar import tool_rules
from orchestrator.http.body import UNSUPPORTED_ITEM, Given, contradiction, nesting, read_json
from orchestrator.types import Constraint, Message

TOOL_NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"
ToolName = Annotated[str, StringConstraints(pattern=TOOL_NAME)]
MAX_TOOLS = 128
MAX_DEPTH = 64  # levels of nesting of a call's arguments


class FunctionTool(Given):
    """A function that may be called. A `strict` schema that cannot constrain a text is refused; of
    other schemas the parts that can are used. Servers (`url`) do not constrain calls."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The schema of its arguments."""
        return self.parameters or {"type": "object", "properties": {}}


class Tool(Given):
    type: Literal["function"]
    function: FunctionTool


def function_tool(given: object) -> object:
    """Refuse a tool that is not a function: OpenAI runs those itself."""
    return check_type(given, "tools", ("function",))


def check_type(given: object, what: str, allowed: Sequence[str]) -> object:
    """Refuse an item of a list that has another type; without a type it passes."""
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind not in allowed:
        raise PydanticCustomError(
            UNSUPPORTED_ITEM,
            "{what} of the type {kind} are not supported here, only {allowed}",
            {"what": what, "kind": kind[:64], "allowed": ", ".join(allowed)},
        )
    return given


class ToolNamed(Given):
    name: ToolName


class ToolReference(Given):
    """The function that a choice names."""

    type: Literal["function"]
    function: ToolNamed

    @property
    def name(self) -> str:
        return self.function.name


class FlatReference(ToolNamed):
    """The function that a choice names, in `POST /v1/responses`."""

    type: Literal["function"]


Reference = TypeVar("Reference", ToolReference, FlatReference)


class AllowedTools(Given, Generic[Reference]):
    """The tools that this answer may call."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[Reference, BeforeValidator(function_tool)]],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]


class AllowedChoice(Given):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools[ToolReference]


class FlatAllowedChoice(AllowedTools[FlatReference]):
    """The tools that this answer may call, in `POST /v1/responses`."""

    type: Literal["allowed_tools"]


Choice = Literal["none", "auto", "required"]
_BY_TYPE = Discriminator(
    # In brackets: `place_of` leaves such names of branches out of an error's place.
    lambda given: f"[{given.get('type')}]" if isinstance(given, dict) else "[word]",
    custom_error_type="invalid_value",
    custom_error_message="expected none, auto, required, a function or allowed_tools",
)
ToolChoice = Annotated[
    Annotated[Choice, Tag("[word]")]
    | Annotated[ToolReference, Tag("[function]")]
    | Annotated[AllowedChoice, Tag("[allowed_tools]")],
    _BY_TYPE,
]
FlatToolChoice = Annotated[
    Annotated[Choice, Tag("[word]")]
    | Annotated[FlatReference, Tag("[function]")]
    | Annotated[FlatAllowedChoice, Tag("[allowed_tools]")],
    _BY_TYPE,
]


def _arguments(given: object) -> object:
    """Refuse JSON that is too deep. Any other text passes, since clients send back a call that was
    cut off; a blank one, which models write for no arguments, becomes an empty object."""
    if not isinstance(given, str):
        return given
    if not given.strip():
        return "{}"
    if nesting(read_json(given)) > MAX_DEPTH:
        message = f"expected JSON at most {MAX_DEPTH} levels deep"
        raise PydanticCustomError("invalid_value", message)
    return given


Arguments = Annotated[str, BeforeValidator(_arguments)]


class FunctionCall(Given):
    name: ToolName
    arguments: Arguments = Field(description="the JSON of an object; blank: no arguments")
    parsed_arguments: Any = None  # the official client's reading of them


class MessageToolCall(Given):
    """A call that an earlier turn made; `index` is its number in a stream."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class ToolUse:
    """The tools of a request as models see them, and what an answer that calls them must match.

    Args:
        choice: None means auto.
        parallel: whether one answer may make several calls; never if the choice is a function.
        form: what an answer without calls must match.
        inner: the path from a tool to its parameters in error messages.

    Attributes:
        names: the tools that may be called.
        strict: by tool, the arguments' schema of those of them that are `strict`.
        schemas: by tool, the arguments' schema; None if it has none.

    Raises:
        InvalidRequest: the choice names a missing tool; the form contradicts tools; a strict schema
            cannot constrain a text.
    """

    def __init__(
        self,
        tools: Sequence[FunctionTool],
        choice: ToolChoice | FlatToolChoice | None,
        *,
        parallel: bool,
        form: Constraint | None,
        inner: str = "function.parameters",
    ) -> None:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise contradiction("tools", "two of them have the same name")
        if not tools and choice not in (None, "none", "auto"):
            raise contradiction("tool_choice", "there are no tools")
        required, allowed = choice == "required", names
        if isinstance(choice, ToolReference | FlatReference):
            required, allowed, parallel = True, [choice.name], False
        elif isinstance(choice, AllowedChoice | FlatAllowedChoice):
            some = choice.allowed_tools if isinstance(choice, AllowedChoice) else choice
            required, allowed = some.mode == "required", [tool.name for tool in some.tools]
        if unknown := sorted(set(allowed) - set(names)):
            raise contradiction("tool_choice", f"there is no tool {unknown[0]!r}")
        self.tools = () if choice == "none" else tuple(tools)
        self.names = frozenset(allowed if self.tools else ())
        called = [tool for tool in self.tools if tool.name in self.names and tool.strict]
        self.strict = {tool.name: tool.arguments for tool in called}
        self.schemas = {tool.name: tool.parameters for tool in self.tools}
        self.parallel = parallel
        self.constraint = form
        if self.tools:
            if form is not None and form.kind != "json_schema":
                raise contradiction(
                    "tools", "an answer that may call tools is text or JSON, of no other form"
                )
            self.constraint = tool_rules(
                [
                    {
                        "name": tool.name,
                        "parameters": tool.arguments,
                        "strict": bool(tool.strict),
                        "place": f"tools[{i}].{inner}",
                    }
                    for i, tool in enumerate(self.tools)
                    if tool.name in allowed
                ],
                required=required,
                parallel=parallel,
                answer=None if form is None else form.source,
            )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The message that lists them for the chat template, if there are any."""
        if not self.tools:
            return ()
        # Templates need the fields that OpenAI lets clients leave out.
        listed = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.arguments,
                },
            }
            for tool in self.tools
        ]
        return (Message("tools", json.dumps(listed, ensure_ascii=False)),)
