"""A conversation as the chat template writes it, with its contents recognisable (`traced`).

No message is dropped: a conversation that the template refuses or shows in part gets another form
(`conversation`). Tools and earlier calls are markup, as in training, except texts that spell
control tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from jinja2 import TemplateError

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import InvalidRequest, Unsupported
from orchestrator.types import CallFormat, Message
from workers.memo import remembered
from workers.text.chat_template import tojson
from workers.text.conversation import arrangements, one_call_a_turn
from workers.text.efforts import find_efforts
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import TOOLS, find_call_format
from workers.text.traced import has_twins, pieces, plain, traced, twins

_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")  # an earlier turn's thought
_REFUSALS = (TemplateError, TypeError, ValueError, RecursionError)  # what a template may raise
_FORM_BYTES = 4 << 20
_QUESTION = Message("user", "?")


class _Form(NamedTuple):
    """How the template renders conversations of one shape."""

    length: int  # the number of messages
    arrangement: int  # index of the first arrangement in which the template shows them all
    tail: str  # the markup at the end of its output, if no text changes that
    has_switch: bool  # whether it can switch the thought off; False if a thought is wanted


class ConversationRenderer:
    """Writes conversations by one checkpoint's template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._form = remembered(self._find_form, _FORM_BYTES, lambda form: 512 * form.length)

    @cached_property
    def efforts(self) -> TemplateEfforts | None:
        """The levels of effort that the template has, if any."""
        family, template = self.tokenizer.format, self.tokenizer.chat_template
        on = {} if family is None else family.variables(True)
        question = [{"role": "user", "content": "?"}]
        return find_efforts(template.source, lambda own: template.render(question, {**on, **own}))

    @cached_property
    def calls(self) -> CallFormat | None:
        """How this model writes calls of tools; None if in no known way."""
        family, tokenizer = self.tokenizer.format, self.tokenizer
        if family is not None and family.answer:
            return None  # this markup begins an answer, not a call
        marks = (family.open, family.close) if family else None
        special = [tokenizer.decode([i]) for i in sorted(tokenizer.controls)]
        return find_call_format(
            lambda messages, replies: self._rendered(messages, False, TOOLS, replies),
            [one for one in special if marks is None or one not in (marks[0] + marks[1])],
            marks,
            "" if tokenizer.eos_id is None else tokenizer.decode([tokenizer.eos_id]),
        )

    def conversation(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages in the first of their `arrangements` that the template shows whole.

        Raises:
            InvalidRequest: there is none.
            Unsupported: the messages have tools.
        """
        if has_tools(messages):
            raise Unsupported("tools, which a chat server is not sent")
        form = self._form(_shape(messages), self.tokenizer.thinks, None)
        return arrangements(messages)[form.arrangement]

    def before_assistant(self, messages: Sequence[Message], level: str = "") -> str:
        """Return the text of a `conversation` up to the reply's content, at a level of effort."""
        reply = Message("assistant", _unused(messages))
        text = self._written([*messages, reply], self.tokenizer.thinks, level=level)
        before, found, _ = text.partition(twins(reply.content))
        if not found:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        return plain(before)

    def written(
        self, messages: tuple[Message, ...], thinking: bool, level: str
    ) -> tuple[str, str, bool]:
        """Return what the template writes, the markup before the reply that it leaves to us, and
        whether a thought follows. `level` is its level of effort."""
        tools, turns, form = None, messages, self._form
        if has_tools(messages):  # not cached, since they rarely repeat
            tools, turns = self._with_tools(messages)
            form = self._find_form
        found = form(_shape(turns), thinking, tools)
        text = self._written(arrangements(turns)[found.arrangement], thinking, tools, level)
        family, tail = self.tokenizer.format, _tail(text)
        if family is None:
            return text, "", thinking
        if thinking:
            if family.closes(tail) and not family.closes(found.tail):  # a text switched it off
                return self.written(messages, False, "")
            return text, "" if family.opens(tail) else family.open, True
        if family.opens(tail):
            return text, family.closing, False
        # A text may make the template ignore its switch, and leave a thought to the model.
        switched = found.has_switch and not family.closes(found.tail)
        return text, "" if family.closes(tail) or switched else family.without, False

    def written_after(self, turns: tuple[Message, ...]) -> tuple[str, str]:
        """Return what the template writes after an answer that these turns follow, and the markup
        before the reply that it leaves to us."""
        shape = _shape(turns)
        shown = self._after_answer(shape)
        for i, turn in enumerate(shape):
            if twins(turn.content) not in shown:
                raise InvalidRequest(f"this model's chat template ignores turn {i}")
        text, family = self._after_answer(turns), self.tokenizer.format
        if family is not None and family.opens(_tail(text)):
            return text, family.closing
        if family is not None and family.direct and not self._has_switch([_QUESTION]):
            return text, family.direct
        return text, ""

    def _with_tools(self, messages: tuple[Message, ...]) -> tuple[Any, tuple[Message, ...]]:
        """Return a conversation's tools as the template gets them, and its turns."""
        if self.calls is None:
            raise InvalidRequest(
                "tools: this model's chat template has no place for tools, or writes calls in a "
                "form that is not known here; ask without them, or serve another model",
                param="tools",
                code="unsupported_parameter",
            )
        tools = None
        if messages[0].role == "tools":
            tools, messages = self._safe(json.loads(messages[0].content)), messages[1:]
        return tools, messages if self.calls.between is not None else one_call_a_turn(messages)

    def _find_form(self, shape: tuple[Message, ...], thinking: bool, tools: Any) -> _Form:
        """Find the first arrangement in which the template shows all contents (marks of a shape),
        except those beside calls."""
        said = [i for i, message in enumerate(shape) if message.content and not message.calls]
        refusal: InvalidRequest | None = None
        forms = arrangements(shape)
        for messages in forms:
            try:
                text = self._written(messages, thinking, tools)
            except InvalidRequest as error:
                refusal = refusal or error
                continue
            missing = [i for i in said if twins(_mark(i)) not in text]
            if not missing:
                break
            role = shape[missing[0]].role
            refusal = refusal or InvalidRequest(
                f"this model's chat template ignores {role} messages here"
            )
        else:
            assert refusal is not None
            raise refusal
        if not all(tool["function"]["name"] in plain(text) for tool in tools or ()):
            raise InvalidRequest(
                "tools: this model's chat template does not show them here", param="tools"
            )
        has_switch = not thinking and self._has_switch(messages, tools)
        return _Form(len(shape), forms.index(messages), _tail(text), has_switch)

    def _has_switch(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether the template can switch the thought off. Granite's can only if there is no system
        message."""
        return any(
            self._written(one, True, given) != self._written(one, False, given)
            for one, given in ((messages, tools), ((_QUESTION,), None))
        )

    def _after_answer(self, turns: Sequence[Message]) -> str:
        """Return what the template writes after an answer that these turns follow."""
        answer = _unused(turns)
        question = f"{answer}?"
        text = self._written(
            [Message("user", question), Message("assistant", answer), *turns], False
        )
        _, found, after = text.partition(twins(question))[2].partition(twins(answer))
        if not found:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        return after

    def _written(
        self, messages: Sequence[Message], thinking: bool, tools: Any = None, level: str = ""
    ) -> str:
        """Render a conversation with all texts; else without reasoning; else unread as well.
        Raise InvalidRequest if the template refuses all three."""
        bare = [replace(message, reasoning="") for message in messages]
        refusal: Exception | None = None
        for one, reads in ((messages, True), (bare, True), (bare, False)):
            shown = [self._shown(message, reads) for message in one]
            try:
                return self._rendered(shown, thinking, tools, level=level)
            except _REFUSALS as error:
                refusal = refusal or error
        self._check_tools(tools)
        roles = ", ".join(message.role for message in messages)
        raise InvalidRequest(
            f"this model's chat template refuses the roles {roles}: {refusal}", param="messages"
        ) from refusal

    def _check_tools(self, tools: Any) -> None:
        """Refuse a tool that the template cannot show."""
        question = [{"role": "user", "content": "?"}]
        for i, tool in enumerate(tools or ()):
            try:
                self._rendered(question, False, [tool])
            except _REFUSALS as error:
                raise InvalidRequest(
                    f"tools[{i}] ({tool['function']['name']}): this model's chat template cannot "
                    f"show it: {plain(str(error))}; give its parameters what the template reads, "
                    "as properties, with a type and a description each",
                    param=f"tools[{i}]",
                ) from error

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        thinking: bool,
        tools: Any = None,
        replies: bool = True,
        level: str = "",
    ) -> str:
        """Render by the template, with the beginning of a reply if `replies`."""
        family = self.tokenizer.format
        variables: dict[str, Any] = {"tools": tools, "add_generation_prompt": replies}
        if family is not None:
            variables |= family.variables(thinking)
        if level and self.efforts is not None:
            variables[self.efforts.variable] = level
        return self.tokenizer.chat_template.render(messages, variables)

    def _shown(self, message: Message, reads: bool) -> dict[str, Any]:
        """Return a message for the template, which can read the content only if `reads`."""
        # Markers in others' texts are mentions, at which the template must not cut.
        family, ours = self.tokenizer.format, message.role == "assistant"
        mentions = () if family is None or ours else (family.open.strip(), family.close.strip())
        content = traced(message.content, mentions) if reads else twins(message.content)
        shown: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning:
            shown |= dict.fromkeys(_REASONING, traced(message.reasoning))
        if message.calls and self.calls is not None:
            shown["tool_calls"] = [
                {
                    "id": _short_id(call.id),
                    "type": "function",
                    "function": {
                        "name": self._safe(call.name),
                        "arguments": self._arguments(call.arguments),
                    },
                }
                for call in message.calls
            ]
        if message.role == "tool":
            shown["tool_call_id"] = _short_id(message.call_id)
            shown["name"] = self._safe(message.name)
        return shown

    def _arguments(self, text: str) -> Any:
        """Return an earlier call's arguments as the template expects them. If they are not an
        object (the call was cut off), return the text, or an empty object."""
        assert self.calls is not None
        as_text = self.calls.text_arguments
        try:
            # JSON may escape half a surrogate pair, which tokenizers refuse.
            value = json.loads(text, parse_constant=_refused)
            given = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return self._safe(text.encode(errors="replace").decode()) if as_text else {}
        safe = self._safe(json.loads(given))
        return tojson(safe) if as_text else safe

    def _safe(self, value: Any) -> Any:
        """Return a value with its texts traced if they spell markup of the model."""
        if isinstance(value, dict):
            if self._is_unsafe("\n".join(value)):
                raise InvalidRequest(
                    "tools: a name in them spells markup of this model", param="tools"
                )
            return {name: self._safe(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._safe(one) for one in value]
        return traced(value) if isinstance(value, str) and self._is_unsafe(value) else value

    def _is_unsafe(self, text: str) -> bool:
        if has_twins(text):
            return True
        return not self.tokenizer.added.isdisjoint(self.tokenizer.encode_markup(text))


def _tail(text: str) -> str:
    """Return the markup at the end of what a template wrote."""
    *_, (last, is_content) = [("", False), *pieces(text)]
    return "" if is_content else last


def _mark(i: int) -> str:
    """Return the content of message `i` of a shape."""
    return f"BATON{i:04d}MARK"


def _unused(messages: Sequence[Message]) -> str:
    """Return a content that none of the messages holds."""
    return next(one for one in map(_mark, count()) if not any(one in m.content for m in messages))


def _shape(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a conversation with marks in place of its texts."""
    return tuple(
        replace(message, content=_mark(i) if message.content.strip() else "", reasoning="")
        for i, message in enumerate(messages)
    )


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether tools, or calls of them, are part of a conversation."""
    return any(message.calls or message.role in ("tool", "tools") for message in messages)


def _short_id(call_id: str) -> str:
    """Return a call's id of nine letters and digits, as Mistral's templates require."""
    if re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
