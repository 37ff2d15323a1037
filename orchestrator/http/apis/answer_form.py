"""The parameters for what an answer must match."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.grammar import check
from orchestrator.http.body import MAX_DEPTH, Given, contradiction, nesting, read_json
from orchestrator.types import Constraint

_Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=256)]
FormatType = Literal["text", "json_object", "json_schema"]


def format_form(kind: FormatType, schema: dict[str, Any] | None, place: str) -> Constraint | None:
    """Return what an answer of a JSON format must match; None for any text.

    Raises:
        InvalidRequest: names `place`; the schema is missing, or the type wants none.
    """
    if (kind == "json_schema") != (schema is not None):
        raise contradiction(
            place, "json_schema must be given where the type is json_schema, and only there"
        )
    return None if kind == "text" else json_form(schema)


def json_form(schema: dict[str, Any] | None) -> Constraint:
    """Return the form of JSON that matches a schema; None: of any object."""
    return Constraint("json_schema", json.dumps({"type": "object"} if schema is None else schema))


class NamedSchema(Given):
    """A JSON Schema; `strict` changes nothing, since an answer always matches it."""

    name: Annotated[str, Field(max_length=64)] = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Given):
    """`response_format`: plain text, any JSON object, or JSON that matches a schema."""

    type: FormatType
    json_schema: NamedSchema | None = None

    @property
    def form(self) -> Constraint | None:
        schema = None if self.json_schema is None else self.json_schema.schema_
        return format_form(self.type, schema, "response_format")


def _schema(given: object) -> object:
    """Read a JSON Schema that is a text."""
    if not isinstance(given, str):
        return given
    found = read_json(given)
    if found is None or nesting(found) > MAX_DEPTH:
        raise PydanticCustomError(
            "invalid_value", f"expected the JSON of a schema, at most {MAX_DEPTH} levels deep"
        )
    return found


class StructuredOutput(Given):
    """`structured_outputs`, as vLLM has it: one of its forms."""

    json_: Annotated[
        dict[str, Any] | bool | None,
        BeforeValidator(_schema, json_schema_input_type=dict[str, Any] | str | None),
    ] = Field(default=None, alias="json")
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = Field(default=None, description="in Lark's notation")
    json_object: bool | None = None
    disable_any_whitespace: bool | None = Field(default=None, description="JSON has none anyway")
    disable_fallback: bool | None = Field(default=None, description="there is none anyway")
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None

    @property
    def forms(self) -> dict[str, Constraint]:
        """The forms that are given, by name."""
        found = dict[str, Constraint]()
        if self.json_ is not None:
            found["json"] = Constraint("json_schema", json.dumps(self.json_))
        if self.regex is not None:
            found["regex"] = Constraint("regex", self.regex)
        if self.choice is not None:
            found["choice"] = Constraint("regex", "|".join(map(_literally, self.choice)))
        if self.grammar is not None:
            found["grammar"] = Constraint("grammar", self.grammar)
        if self.json_object:
            found["json_object"] = json_form(None)
        return found


class AnswerForm(BaseModel):
    """The parameters for what an answer must match; at most one may be given."""

    response_format: ResponseFormat | None = Field(
        default=None, description="the answer is text, JSON, or JSON that matches a schema"
    )
    structured_outputs: StructuredOutput | None = Field(
        default=None, description="vLLM's: the answer matches a schema, a regex, ..."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = self._given()
        if len(given) > 1:
            first, second = list(given)[:2]
            raise contradiction(second, f"contradicts {first}: give one of them")
        for place, form in given.items():
            check(form, place)
        return self

    @property
    def form(self) -> Constraint | None:
        return next(iter(self._given().values()), None)

    def _given(self) -> dict[str, Constraint]:
        form = None if self.response_format is None else self.response_format.form
        found = {} if form is None else {"response_format": form}
        others = {} if self.structured_outputs is None else self.structured_outputs.forms
        return found | {f"structured_outputs.{name}": one for name, one in others.items()}


def _literally(text: str) -> str:
    """Return a regular expression that matches only this text (`re.escape` escapes characters that
    some dialects refuse to have escaped)."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)
