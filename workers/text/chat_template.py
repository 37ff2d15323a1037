"""A checkpoint's chat template, rendered as transformers renders it, without transformers.

Templates come from the Hugging Face hub and are code that nobody here has read: they run in
Jinja's sandbox, where they see role names and placeholders, and of a user's texts only tools and
earlier calls of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from orchestrator.errors import ConfigError

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
"""For checkpoints without a chat template of their own."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja's.
        special_tokens: texts by the names under which templates know them ("bos_token", ...).

    Raises:
        ConfigError: it is no Jinja template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error

    @property
    def today(self) -> str:
        """The date, where the template may write it, so that nothing is kept beyond it; else
        empty."""
        return _strftime_now("%Y-%m-%d") if "strftime_now" in self.source else ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of a conversation, and of the beginning of a reply.

        `variables` are the template's own, such as the switch of a thought.

        Raises:
            jinja2.TemplateError, TypeError, ValueError: the template cannot render these messages.
        """
        names: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
        return self._template.render(
            messages=messages, **(names | self._special_tokens | dict(variables))
        )


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates are written for: transformers' `render_jinja_template`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _GenerationTag(Extension):
    """`{% generation %}`, which marks what to train on, and otherwise writes what is in it."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dict:
    """`dict` without the attributes of a class."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's `namespace`, with no way to set Python's own attributes."""

    def __init__(*args: Any, **items: Any) -> None:  # so that an item may be called self
        self, *rest = args
        values = dict(*rest, **items)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attributes must not begin with an underscore: {name!r}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
