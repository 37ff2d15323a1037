"""Turns a transcript into token ids by the chat template; contents never become markup.

The template reads the conversation's texts, so that it can leave out an earlier thought or obey a
switch in a text. Its output is encoded as markup, except for contents, which are plain text
(`traced`).

No message is dropped: if the template refuses a conversation, or shows a part of it, the
conversation is changed into a form that the template accepts (`conversation`).

Tools and earlier calls are encoded as markup, as in training, except texts that spell control
tokens.

Invariant: the ids of a transcript are a prefix of the ids of that transcript with one more segment,
because nothing is encoded across the border of a segment. Advice is no such segment: it is a turn
(`Transcript.turns`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

from jinja2 import TemplateError

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import ConfigError, InvalidRequest, Unsupported
from orchestrator.types import CallFormat, Constraint, Message, Segment, Segments, Transcript
from workers.memo import remembered
from workers.text.chat_template import tojson
from workers.text.checks import check_length
from workers.text.conversation import arrangements, one_call_a_turn
from workers.text.detokenizer import unfinished
from workers.text.efforts import find_efforts
from workers.text.second_close import SecondClose
from workers.text.thinking import Variables
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import TOOLS, find_call_format
from workers.text.traced import has_twins, pieces, plain, traced, twins

FINAL_ANSWER = "\n\n**Final Answer**\n\n"
"""Text between another model's thought and the answer of a model that marks no thought. Without it,
this model takes the thought for its answer, and adds nothing."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
"""Names by which templates know the thought of an earlier turn."""
LONG = 1 << 14
"""Characters above which a thread tokenizes a prompt, so that other calls need not wait."""
_PROMPT_BYTES, _MARKUP_BYTES = 32 << 20, 4 << 20
"""Sizes of the caches of prompts and of the template's markup."""
_TOKEN_BYTES = 16
"""Estimated size of an id of a prompt in an array, with its text."""


class _Prompt(NamedTuple):
    """A prompt's ids, and whether a thought follows."""

    ids: Sequence[int]
    thinks: bool


class _Form(NamedTuple):
    """How the template renders conversations of one shape.

    Attributes:
        length: the number of messages.
        arrangement: index of the first arrangement in which the template shows them all.
        tail: the markup at the end of its output, if no text changes that.
        has_switch: whether the template can switch the thought off; False if a thought is wanted.
    """

    length: int
    arrangement: int
    tail: str
    has_switch: bool


class _Ids(NamedTuple):
    """A segment's ids, and those of the segments before it."""

    before: _Ids | None
    ids: tuple[int, ...]


class PromptRenderer:
    """Renders transcripts and side conversations for one checkpoint.

    Args:
        vocabulary: the number of the model's ids, if it may be smaller than the tokenizer's.

    Attributes:
        vocabulary: the number of the tokenizer's ids that the model has.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = min(vocabulary or len(tokenizer.pieces), len(tokenizer.pieces))
        self._form = remembered(self._find_form, _MARKUP_BYTES, lambda form: 512 * form.length)
        self._markup = remembered(tokenizer.encode_markup, _MARKUP_BYTES, _bytes_of_ids)
        self._side = remembered(self._render_side, _MARKUP_BYTES, _bytes_of_ids)
        self._prompt = remembered(
            self._render_prompt, _PROMPT_BYTES, lambda prompt: _bytes_of_ids(prompt.ids)
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._final = tokenizer.encode(FINAL_ANSWER)
        self._closing = (
            tokenizer.encode_markup(tokenizer.format.closing) if tokenizer.format else self._final
        )
        try:
            for thinking in (True, False):
                self._form((Message("user", _mark(0)),), thinking, None)
            self._side((Message("user", "?"),))
        except InvalidRequest as error:
            raise ConfigError(f"the chat template cannot render a question: {error}") from error

    async def prepare(
        self, transcript: Transcript, context: int | None, owner: str = ""
    ) -> list[int]:
        """Return the ids of `transcript`; a thread tokenizes long messages, one prompt at a time.

        Raises:
            ContextLengthExceeded: long messages do not fit the context.
        """
        messages = transcript.turns
        size = sum(map(_size, messages))
        if size > LONG:
            check_length(int(size / self.tokenizer.token_chars), context, at_least=True)
            thinking = transcript.thinking and self.tokenizer.thinks
            loop = asyncio.get_running_loop()
            level = self._level(transcript)
            prompt = await loop.run_in_executor(
                self._thread, self._prompt, messages, thinking, level, owner, self._today
            )
            check_length(len(prompt.ids), context)
        return self.transcript(transcript, owner)

    def transcript(self, transcript: Transcript, owner: str = "") -> list[int]:
        """Return the ids of everything accepted so far; the next token continues thought or answer.

        Those of messages are cached for their `owner` (`Call.owner`) alone: the time of an answer
        must not show what another owner asked.
        """
        thinking = transcript.thinking and self.tokenizer.thinks
        level = self._level(transcript)
        prompt = self._prompt(transcript.turns, thinking, level, owner, self._today)
        ids = list(prompt.ids)
        if transcript.thinking:
            ids.extend(self._ids(transcript.thought, self._with_segment))
        if transcript.closed:
            if transcript.thinking:
                ids.extend(self._closing if prompt.thinks else self._final)
            ids.extend(self._ids(transcript.answer, self._with_answer))
        return ids

    def thinks(self, transcript: Transcript, owner: str = "") -> bool:
        """Whether the model thinks in this transcript: a text may switch that off, as `/no_think`
        does in some templates."""
        if not (transcript.thinking and self.tokenizer.thinks):
            return self.tokenizer.thinks
        level = self._level(transcript)
        return self._prompt(transcript.messages, True, level, owner, self._today).thinks

    def answer(self, transcript: Transcript) -> Sequence[int]:
        """Return the ids of the answer so far, without a thought at its beginning."""
        parts = map(self.segment, transcript.answer[transcript.reply_start :])
        return [token for part in parts for token in part]

    def segment(self, segment: Segment) -> tuple[int, ...]:
        """Return a segment's ids if they are of our vocabulary, else those of its text."""
        if segment.tokenizer == self.tokenizer.hash and segment.tokens:
            return segment.tokens
        if segment.author == "policy":  # may be a client's text, which must not be cached
            return self.tokenizer.encode_uncached(segment.text)
        return self.tokenizer.encode(segment.text)

    def verified(self, segment: Segment | None) -> tuple[int, ...]:
        """Return the ids of a segment to score, or none without a segment.

        Raises:
            Unsupported: the segment's tokens belong to another vocabulary.
        """
        if segment is None:
            return ()
        if segment.tokens and segment.tokenizer != self.tokenizer.hash:
            raise Unsupported("the segment's tokens belong to another vocabulary")
        return self.segment(segment)

    def unfinished(self, transcript: Transcript) -> bytes:
        """Return the bytes of an unfinished character at the end of the accepted ids."""
        end = b""
        for segment in reversed(transcript.phase):
            for token in reversed(self.segment(segment)):
                end = self.tokenizer.pieces[token] + end
                if len(end) >= 3 or (end and end[-1] < 0x80):  # at most 3 bytes can be unfinished
                    return unfinished(end)
        return unfinished(end)

    def side(self, turns: Sequence[Message], lead_in: str) -> list[int]:
        """Return the ids of a side conversation: end of turn, the turns, the start of the reply."""
        return [*self._side(tuple(turns)), *self.tokenizer.encode(lead_in)]

    @cached_property
    def efforts(self) -> TemplateEfforts | None:
        """The levels of effort that the template has, if any."""
        question, family = [{"role": "user", "content": "?"}], self.tokenizer.format
        on = {} if family is None else family.on
        template = self.tokenizer.chat_template
        return find_efforts(template.source, lambda own: template.render(question, {**on, **own}))

    def effort_variables(self, transcript: Transcript) -> dict[str, str]:
        """Return the template's variables for the transcript's effort, if it reads that."""
        level = self._level(transcript)
        return {self.efforts.variable: level} if self.efforts and level else {}

    def _level(self, transcript: Transcript) -> str:
        """Return the template's level for the transcript's effort; empty: its default."""
        thinks = transcript.thinking and self.tokenizer.thinks
        if not (transcript.effort and thinks and self.efforts):
            return ""
        return self.efforts.nearest(transcript.effort) or ""

    @cached_property
    def calls(self) -> CallFormat | None:
        """How this model writes calls of tools; None if in no known way."""
        family, tokenizer = self.tokenizer.format, self.tokenizer
        marks = (family.open, family.close) if family else None
        if family is not None and family.answer:
            return None  # this markup begins an answer, not a call
        special = [tokenizer.decode([i]) for i in sorted(tokenizer.controls)]
        return find_call_format(
            lambda messages, replies: self._rendered(messages, False, TOOLS, replies),
            [one for one in special if marks is None or one not in (marks[0] + marks[1])],
            marks,
            "" if tokenizer.eos_id is None else tokenizer.decode([tokenizer.eos_id]),
        )

    def literal(self, text: str) -> str:
        """Return a text in Lark's notation, with control tokens by their ids."""
        controls = {self.tokenizer.decode([i]): i for i in self.tokenizer.controls}
        if not controls:
            return json.dumps(text)
        pattern = "|".join(re.escape(one) for one in sorted(controls, key=len, reverse=True))
        parts = re.split(f"({pattern})", text)
        return " ".join(
            f"<[{controls[part]}]>" if part in controls else json.dumps(part)
            for part in parts
            if part
        )

    @property
    def closing_words(self) -> str:
        """The words by which this family ends a thought early; empty if it knows none."""
        family = self.tokenizer.format
        return "" if family is None else family.words

    def calls_of(self, transcript: Transcript) -> CallFormat | None:
        """Return `calls` if the transcript has tools."""
        has_tools = transcript.messages[0].role == "tools"
        return self.calls if has_tools else None

    def ends(self, stop_token_ids: Collection[int], transcript: Transcript) -> frozenset[int]:
        """Return the ids that end a continuation of the transcript: the model's `stop_token_ids`,
        with the marker that ends a thought, and without the markup of calls in an answer."""
        ends, closing = frozenset(stop_token_ids), self.tokenizer.close_id
        if not transcript.closed:
            return ends | {i for i in (closing,) if i is not None and i < self.vocabulary}
        calls = self.calls_of(transcript)
        return ends if calls is None else ends - set(self.tokenizer.encode_markup(calls.markup))

    def second_close(
        self, transcript: Transcript, constraint: Constraint | None
    ) -> SecondClose | None:
        """Return a finder of a thought's end in a continuation of the transcript.

        None in a thought, in a constrained answer, and if messages end with the thought's marker.
        """
        family = self.tokenizer.format if self.tokenizer.thinks else None
        answers = transcript.closed and transcript.thinking
        free = constraint is None or constraint.kind == "tools"
        if family is None or family.direct or not (answers and free):
            return None
        opening, closing = family.open.strip(), family.close.strip()
        return SecondClose(opening, closing, transcript.reply, forced=transcript.forced)

    def conversation(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages in the first of their `arrangements` that the template shows whole.

        Raises:
            InvalidRequest: there is none.
            Unsupported: the messages have tools.
        """
        if _has_tools(messages):
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

    @property
    def _today(self) -> str:
        return self.tokenizer.chat_template.today

    def _render_prompt(
        self, messages: tuple[Message, ...], thinking: bool, level: str, owner: str, today: str
    ) -> _Prompt:
        """`owner` and `today` (`ChatTemplate.today`) are parts of the cache's key."""
        if messages[0].role == "prompt":
            return _Prompt(array("I", self._continued(messages[0])), thinking)
        given, tools, form, markup = messages, None, self._form, self._markup
        if _has_tools(messages):  # not cached, since they rarely repeat
            tools, messages = self._with_tools(messages)
            form, markup = self._find_form, self.tokenizer.encode_markup
        found = form(_shape(messages), thinking, tools)
        arranged = arrangements(messages)[found.arrangement]
        text = self._written(arranged, thinking, tools, level)
        if thinking and self._is_switched_off(text, found):
            return self._render_prompt(given, False, "", owner, today)
        ids = self._encode(text, self.tokenizer.encode_uncached, markup)
        ids += markup(self._after_prompt(_tail(text), thinking, found))
        return _Prompt(array("I", ids), thinking)

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

    def _is_switched_off(self, text: str, form: _Form) -> bool:
        """Whether a text in the conversation made the template end the thought."""
        family = self.tokenizer.format
        return family is not None and family.closes(_tail(text)) and not family.closes(form.tail)

    def _has_switch(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether the template can switch the thought off. Granite's can only if there is no system
        message."""
        asked = ((messages, tools), ((Message("user", "?"),), None))
        return any(
            self._written(one, True, given) != self._written(one, False, given)
            for one, given in asked
        )

    def _after_prompt(self, tail: str, thinking: bool, form: _Form) -> str:
        """Return the markup between a prompt and the reply that the template does not write."""
        family = self.tokenizer.format
        if family is None:
            return ""
        if thinking:
            return "" if family.opens(tail) else family.open
        if family.opens(tail):
            return family.closing
        # A text may make the template ignore its switch, and leave a thought to the model.
        switched = form.has_switch and not family.closes(form.tail)
        return "" if family.closes(tail) or switched else family.without

    def _render_side(self, turns: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the ids after the assistant's turn of [user, assistant, *turns]."""
        shape = _shape(turns)
        shown = self._after_answer(shape)
        for i, turn in enumerate(shape):
            if twins(turn.content) not in shown:
                raise InvalidRequest(f"this model's chat template ignores turn {i}")
        text = self._after_answer(turns)
        family, tail, ended = self.tokenizer.format, _tail(text), ""
        if family is not None and family.opens(tail):
            ended = family.closing
        elif family is not None and family.direct and not self._has_switch([Message("user", "?")]):
            ended = family.direct
        ids = self._encode(text, self.tokenizer.encode, self._markup)
        return (*ids, *self._markup(ended))

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
        """Render a conversation: with all texts; else without reasoning; else unread as well.

        Raises:
            InvalidRequest: the template refuses all three.
        """
        bare = [replace(message, reasoning="") for message in messages]
        refusal: Exception | None = None
        for one, reads in ((messages, True), (bare, True), (bare, False)):
            shown = [self._shown(message, reads) for message in one]
            try:
                return self._rendered(shown, thinking, tools, level=level)
            except (TemplateError, TypeError, ValueError, RecursionError) as error:
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
            except (TemplateError, TypeError, ValueError, RecursionError) as error:
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
        variables: Variables = {"tools": tools, "add_generation_prompt": replies}
        if family is not None:
            variables = {**variables, **(family.on if thinking else family.off)}
        if level and self.efforts is not None:
            variables = {**variables, self.efforts.variable: level}
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

    def _continued(self, message: Message) -> tuple[int, ...]:
        """Return the ids of a prompt that is continued without a template."""
        if message.tokens is None:
            return (*self.tokenizer.begin, *self.tokenizer.encode_uncached(message.content))
        if message.tokens and not self._is_known(message.tokens):
            raise InvalidRequest("the prompt holds ids outside the vocabulary", param="prompt")
        return message.tokens

    def _is_known(self, ids: Sequence[int]) -> bool:
        return min(ids) >= 0 and max(ids) < self.vocabulary

    def _ids(self, segments: Segments, added: Callable[[_Ids | None, Segment], _Ids]) -> list[int]:
        """Return the ids of segments. Each segment's are kept with it (`fold`); joined lists are
        not kept, since transcripts that branch off from one another would each hold one."""
        node, parts = segments.fold(added, None), list[tuple[int, ...]]()
        while node is not None:
            parts.append(node.ids)
            node = node.before
        return list(chain.from_iterable(reversed(parts)))

    def _with_segment(self, before: _Ids | None, segment: Segment) -> _Ids:
        new = self.segment(segment)
        if new and not self._is_known(new):
            raise InvalidRequest("a segment holds ids outside the vocabulary", param="messages")
        return _Ids(before, new)

    def _with_answer(self, before: _Ids | None, segment: Segment) -> _Ids:
        """After a thought that continued in the answer, close it again."""
        made = self._with_segment(before, segment)
        return _Ids(made, self._closing) if segment.finish == "think_end" else made

    def _encode(
        self,
        text: str,
        content: Callable[[str], Sequence[int]],
        markup: Callable[[str], Sequence[int]],
    ) -> list[int]:
        """Encode what the template wrote, by an encoder of contents and one of markup."""
        parts, ids, spaces = list(pieces(text)), list[int](), ""
        for i, (piece, is_content) in enumerate(parts):
            if is_content:
                ids += content(spaces + piece)
                continue
            # A word is one token with the space before it, even if the template wrote the space.
            kept = piece.rstrip(" ") if i + 1 < len(parts) else piece
            ids += markup(kept)
            spaces = piece[len(kept) :]
        return ids


def _bytes_of_ids(ids: Sequence[int]) -> int:
    return _TOKEN_BYTES * len(ids)


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


def _has_tools(messages: Sequence[Message]) -> bool:
    """Whether tools, or calls of them, are part of a conversation."""
    return any(message.calls or message.role in ("tool", "tools") for message in messages)


def _size(message: Message) -> int:
    """Return the number of characters."""
    called = sum(len(call.arguments) for call in message.calls)
    return len(message.content) + len(message.reasoning) + called


def _short_id(call_id: str) -> str:
    """Return a call's id of nine letters and digits, as Mistral's templates require."""
    if re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
