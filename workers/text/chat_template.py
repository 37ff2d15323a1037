"""A checkpoint's chat template, rendered as transformers renders it, without transformers.

Templates are untrusted code from the Hugging Face hub, so they run in Jinja's sandbox. They get
users' texts as `Traced` ones, which they read like any other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from orchestrator.errors import ConfigError
from workers.text.traced import Traced, again, has_twins, pieces, plain, traced, twins

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
"""For checkpoints without a chat template."""


class ChatTemplate:
    """A compiled template; raises ConfigError if a source is not valid Jinja.

    Args:
        special_tokens: texts by their names in templates ("bos_token", ...).
        tool_use: a separate source for conversations with tools.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tool_use: str | None = None
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._is_dated = "strftime_now" in source + (tool_use or "")
        try:
            self._template = self._tool_use = _environment().from_string(source)
            if tool_use is not None:
                self._tool_use = _environment().from_string(tool_use)
        except TemplateError as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error

    @property
    def today(self) -> str:
        """The date if the template may write it, as part of cache keys; else empty."""
        return _strftime_now("%Y-%m-%d") if self._is_dated else ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Render a conversation and the beginning of a reply, with twins (`traced`) in place of
        the characters of traced texts.

        Raises:
            jinja2.TemplateError, TypeError, ValueError: the template cannot render these messages.
        """
        names: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
        names |= self._special_tokens | dict(variables)
        template = self._template if names["tools"] is None else self._tool_use
        return str.__str__(template.render(messages=messages, **names))


class _CodeGenerator(CodeGenerator):
    """Jinja's, except that `~` joins texts by the environment's `concat`."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("str(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which texts with contents stay traced."""

    code_generator_class = _CodeGenerator

    @staticmethod
    def concat(texts: Iterable[str]) -> Any:
        return again("".join(texts))

    def call(*given: Any, **named: Any) -> Any:  # as Jinja's, whose arguments have no names
        call, (_, _, method, *_) = ImmutableSandboxedEnvironment.call, given
        if isinstance(method, BuiltinMethodType) and isinstance(method.__self__, str):
            call = _faithful(call)
        return again(call(*given, **named))


def _faithful(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter or a text's method to return for traced texts what it returns for plain ones.

    The result stays traced. If the function treats twins differently, all of it counts as content.
    """

    @wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        texts, named_texts = _plain_of(given), _plain_of(named)
        if texts is given and named_texts is named:
            return again(function(*given, **named))
        try:
            made = again(function(*given, **named))
            if not isinstance(made, str | int | float):
                return made
        except Exception:
            made = None
        right = function(*texts, **named_texts)
        if not isinstance(right, str):
            return right
        is_right = isinstance(made, str) and plain(made) == plain(right)
        return made if is_right else traced(plain(right))

    return wrapper


def _plain_of(value: Any) -> Any:
    """Return a value with its contents as plain texts, or itself if it has none."""
    if isinstance(value, str):
        return plain(value) if has_twins(value) else value
    if isinstance(value, BuiltinMethodType) and isinstance(value.__self__, Traced):
        return getattr(plain(value.__self__), value.__name__)
    if not isinstance(value, dict | list | tuple):
        return value
    items = [*value, *value.values()] if isinstance(value, dict) else list(value)
    texts = list(map(_plain_of, items))
    if all(one is text for one, text in zip(items, texts, strict=True)):
        return value
    if isinstance(value, dict):
        return dict(zip(texts[: len(value)], texts[len(value) :], strict=True))
    return tuple(texts) if isinstance(value, tuple) else texts


def _environment() -> ImmutableSandboxedEnvironment:
    """Return an environment like that of transformers' `render_jinja_template`."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.filters |= {k: _faithful(one) for k, one in environment.filters.items()}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _GenerationTag(Extension):
    """`{% generation %}`, which marks text to train on: here it writes its body."""

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


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's escapes for HTML; an escaped content stays content."""
    form: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    text = json.dumps(_escaped(value, ensure_ascii), ensure_ascii=False, **form)
    if not ensure_ascii:
        return text
    return "".join(
        twins(piece) if is_content else _NON_ASCII.sub(lambda one: json.dumps(one[0])[1:-1], piece)
        for piece, is_content in pieces(text)
    )


_NON_ASCII = re.compile("[^\0-\x7f]+")


def _escaped(value: Any, ensure_ascii: bool) -> Any:
    """Return a value with the characters of its contents escaped as in JSON."""
    if isinstance(value, dict):
        return {_escaped(k, ensure_ascii): _escaped(one, ensure_ascii) for k, one in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(one, ensure_ascii) for one in value]
    if not isinstance(value, str):
        return value
    return "".join(
        twins(json.dumps(piece, ensure_ascii=ensure_ascii)[1:-1]) if is_content else piece
        for piece, is_content in pieces(value)
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(plain(str(message)))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
