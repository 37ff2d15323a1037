"""What a request says of its answer's form: OpenAI's `response_format` and vLLM's parameters."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.grammar import check
from orchestrator.http.body import MAX_DEPTH, nesting
from orchestrator.http.schemas import contradiction
from orchestrator.types import Constraint

ANY_OBJECT = '{"type": "object"}'
_Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=256)]


class NamedSchema(BaseModel):
    """A JSON Schema; `strict` changes nothing, since an answer is always held to it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    name: Annotated[str, Field(max_length=64)] = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`: plain text, any JSON object, or JSON that matches a schema."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise contradiction(
                "response_format",
                "json_schema must be given where the type is json_schema, and only there",
            )
        return self

    @property
    def constraint(self) -> Constraint | None:
        if self.json_schema is not None:
            return Constraint("json_schema", json.dumps(self.json_schema.schema_))
        return Constraint("json_schema", ANY_OBJECT) if self.type == "json_object" else None


class GuidedOutput(BaseModel):
    """`structured_outputs`: one of what vLLM offers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = Field(default=None, description="in Lark's notation")
    json_object: bool | None = None
    disable_any_whitespace: bool | None = Field(default=None, description="JSON has none anyway")
    disable_fallback: bool | None = Field(default=None, description="there is none anyway")
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None


class StructuredOutputs(BaseModel):
    """The parameters that say what an answer must match; at most one may be given."""

    response_format: ResponseFormat | None = Field(
        default=None, description="the answer is text, JSON, or JSON that matches a schema"
    )
    structured_outputs: GuidedOutput | None = Field(
        default=None, description="vLLM's: the answer matches a schema, a regex, ..."
    )
    guided_json: dict[str, Any] | str | None = Field(
        default=None, description="the same, under vLLM's former names"
    )
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = Field(default=None, description="in Lark's notation")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = self._given()
        if len(given) > 1:
            first, second = list(given)[:2]
            raise contradiction(second, f"contradicts {first}: give one of them")
        for place, constraint in given.items():
            check(constraint, place)
        return self

    @property
    def form(self) -> Constraint | None:
        """What the answer must match."""
        return next(iter(self._given().values()), None)

    def _given(self) -> dict[str, Constraint]:
        """What was asked for, by the place where it was."""
        guided = self.structured_outputs or GuidedOutput()
        form = self.response_format
        asked = {
            "response_format": None if form is None else form.constraint,
            "structured_outputs.json": _schema(guided.json_, "structured_outputs.json"),
            "structured_outputs.regex": _plain("regex", guided.regex),
            "structured_outputs.choice": _choice(guided.choice),
            "structured_outputs.grammar": _plain("grammar", guided.grammar),
            "structured_outputs.json_object": _schema(
                ANY_OBJECT if guided.json_object else None, "structured_outputs.json_object"
            ),
            "guided_json": _schema(self.guided_json, "guided_json"),
            "guided_regex": _plain("regex", self.guided_regex),
            "guided_choice": _choice(self.guided_choice),
            "guided_grammar": _plain("grammar", self.guided_grammar),
        }
        return {place: one for place, one in asked.items() if one is not None}


def _schema(schema: dict[str, Any] | str | None, place: str) -> Constraint | None:
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            levels = nesting(json.loads(schema))
        except (ValueError, RecursionError):
            raise contradiction(place, "expected a JSON Schema, but it is no JSON") from None
        if levels > MAX_DEPTH:
            raise contradiction(
                place, f"expected a JSON Schema at most {MAX_DEPTH} levels deep, got {levels}"
            )
        return Constraint("json_schema", schema)
    return Constraint("json_schema", json.dumps(schema))


def _plain(kind: Literal["regex", "grammar"], source: str | None) -> Constraint | None:
    return None if source is None else Constraint(kind, source)


def _choice(choices: list[str] | None) -> Constraint | None:
    return None if choices is None else _plain("regex", "|".join(map(_literally, choices)))


def _literally(text: str) -> str:
    """A regular expression that matches this text alone (`re.escape` escapes more than is special
    everywhere)."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)
