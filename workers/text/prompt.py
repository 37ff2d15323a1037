"""From a transcript to token ids: the chat template, with contents that never become markup.

The template reads a conversation as it is, so that it may leave out an earlier thought or obey a
switch in a text. What it wrote itself is encoded as markup, what it wrote of contents as plain text
(`traced`).

No message is dropped: a conversation that the template refuses, or shows in part, is brought into a
form that it takes (`conversation`).

Tools and earlier calls are markup, as models saw them in training, but for texts that spell control
tokens.

Invariant: the ids of a transcript are a prefix of the ids of that transcript with one more segment.
It holds because nothing is ever encoded across the border of a segment.
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
from itertools import count
from typing import Any, NamedTuple

from jinja2 import TemplateError

from orchestrator.errors import ConfigError, InvalidRequest, Unsupported
from orchestrator.types import CallFormat, Constraint, Message, Segment, Segments, Transcript
from workers.memo import remembered
from workers.text.chat_template import tojson
from workers.text.checks import check_length
from workers.text.conversation import arrangements, one_call_a_turn
from workers.text.detokenizer import unfinished
from workers.text.second_close import SecondClose
from workers.text.thinking import Variables
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import TOOLS, find_call_format
from workers.text.traced import has_twins, pieces, plain, traced, twins

FINAL_ANSWER = "\n\n**Final Answer**\n\n"
"""Between a thought of somebody else's and the answer of a model that marks none: without it the
model takes the thought for its answer, and has nothing to add."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
"""Names by which templates know the thought of an earlier turn."""
LONG = 1 << 14
"""Characters of a prompt that is tokenized in a thread: other calls do not wait for it."""
_PROMPT_BYTES, _MARKUP_BYTES = 32 << 20, 4 << 20
"""What is kept of prompts, and of the template's markup."""
_TOKEN_BYTES = 16
"""About what an id of a prompt in an array takes, with its text."""


class _Prompt(NamedTuple):
    """A prompt's ids, and whether a thought is to follow."""

    ids: Sequence[int]
    thinks: bool


class _Form(NamedTuple):
    """How the template takes conversations of a shape.

    Attributes:
        length: messages of such a conversation.
        number: the arrangement in which it shows them all.
        tail: how what it writes of one ends, where no text tells it otherwise.
        has_switch: whether it has a switch for no thought; not looked at if there is to be one.
    """

    length: int
    number: int
    tail: str
    has_switch: bool


class _Ids(NamedTuple):
    """A segment's ids, and those of the segments before it."""

    before: _Ids | None
    ids: tuple[int, ...]


class PromptRenderer:
    """Renders transcripts and side conversations for one checkpoint.

    Args:
        vocabulary: how many ids the model has, where it may be fewer than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int | None = None) -> None:
        self.tokenizer = tokenizer
        self._vocabulary = min(vocabulary or len(tokenizer.pieces), len(tokenizer.pieces))
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
        """The ids of `transcript`. Messages that are too long for a context of this many tokens are
        refused; a thread tokenizes those that are merely long, one prompt after the other.

        Raises:
            ContextLengthExceeded: they do not fit, however their text is cut into tokens.
        """
        messages = transcript.messages
        size = sum(map(_size, messages))
        if size > LONG:
            check_length(int(size / self.tokenizer.token_chars), context, at_least=True)
            thinking = transcript.thinking and self.tokenizer.thinks
            loop = asyncio.get_running_loop()
            prompt = await loop.run_in_executor(
                self._thread, self._prompt, messages, thinking, owner, self._today
            )
            check_length(len(prompt.ids), context)
        return self.transcript(transcript, owner)

    def transcript(self, transcript: Transcript, owner: str = "") -> list[int]:
        """Ids of everything accepted so far; the next token continues thought or answer.

        Those of messages are remembered for their `owner` (`Call.owner`) alone: the time an answer
        takes must not show what another owner asked.
        """
        thinking = transcript.thinking and self.tokenizer.thinks
        prompt = self._prompt(transcript.messages, thinking, owner, self._today)
        ids = [*prompt.ids, *self._ids(transcript.thought, self._with_segment)]
        if transcript.closed:
            if transcript.thinking:
                ids.extend(self._closing if prompt.thinks else self._final)
            ids.extend(self._ids(transcript.answer, self._with_answer))
        return ids

    def thinks(self, transcript: Transcript, owner: str = "") -> bool:
        """Whether the model has a thought there: a text may switch it off, as `/no_think` does in
        some templates."""
        if not (transcript.thinking and self.tokenizer.thinks):
            return self.tokenizer.thinks
        return self._prompt(transcript.messages, True, owner, self._today).thinks

    def answer(self, transcript: Transcript) -> Sequence[int]:
        """Ids of the answer so far, after what a model still thought."""
        parts = map(self.segment, transcript.answer[transcript.reply_start :])
        return [token for part in parts for token in part]

    def segment(self, segment: Segment) -> tuple[int, ...]:
        """A segment's own ids where they are of our vocabulary, else its text encoded alone."""
        if segment.tokenizer == self.tokenizer.hash and segment.tokens:
            return segment.tokens
        if segment.author == "policy":  # it may be the client's text
            return self.tokenizer.encode_anew(segment.text)
        return self.tokenizer.encode(segment.text)

    def verified(self, segment: Segment | None) -> tuple[int, ...]:
        """The ids of a segment to score; none where there is no segment.

        Raises:
            Unsupported: they belong to another vocabulary.
        """
        if segment is None:
            return ()
        if segment.tokens and segment.tokenizer != self.tokenizer.hash:
            raise Unsupported("the segment's tokens belong to another vocabulary")
        return self.segment(segment)

    def unfinished(self, transcript: Transcript) -> bytes:
        """The bytes of a character that the accepted ids began and did not finish."""
        end = b""
        for segment in reversed(transcript.phase):
            for token in reversed(self.segment(segment)):
                end = self.tokenizer.pieces[token] + end
                if len(end) >= 3 or (end and end[-1] < 0x80):  # no more than 3 bytes can wait
                    return unfinished(end)
        return unfinished(end)

    def side(self, turns: Sequence[Message], lead_in: str) -> list[int]:
        """What follows a transcript for a judge: end of turn, the turns, the start of the reply."""
        return [*self._side(tuple(turns)), *self.tokenizer.encode(lead_in)]

    @cached_property
    def calls(self) -> CallFormat | None:
        """How this model writes calls of tools; None: in no way that is known."""
        family, tokenizer = self.tokenizer.format, self.tokenizer
        marks = (family.open, family.close) if family else None
        if family is not None and family.answer:
            return None  # answers and calls begin otherwise, so the answer has begun too early
        special = [tokenizer.decode([i]) for i in sorted(tokenizer.controls)]
        return find_call_format(
            lambda messages, replies: self._rendered(messages, False, TOOLS, replies),
            [one for one in special if marks is None or one not in (marks[0] + marks[1])],
            marks,
            "" if tokenizer.eos_id is None else tokenizer.decode([tokenizer.eos_id]),
        )

    def literal(self, text: str) -> str:
        """A text in Lark's notation, with control tokens by their ids."""
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

    def calls_of(self, transcript: Transcript) -> CallFormat | None:
        """How this model writes calls of the tools that a transcript has, if it has any."""
        has_tools = transcript.messages[0].role == "tools"
        return self.calls if has_tools else None

    def ends(self, stop_token_ids: Collection[int], transcript: Transcript) -> frozenset[int]:
        """The ids that end what continues a transcript, of a model with these `stop_token_ids`.

        A thought ends with its marker too. The markup of a call ends no answer.
        """
        ends, closing = frozenset(stop_token_ids), self.tokenizer.close_id
        if not transcript.closed:
            return ends | {i for i in (closing,) if i is not None and i < self._vocabulary}
        calls = self.calls_of(transcript)
        return ends if calls is None else ends - set(self.tokenizer.encode_markup(calls.markup))

    def second_close(
        self, transcript: Transcript, constraint: Constraint | None
    ) -> SecondClose | None:
        """What finds an end of the thought in what continues a transcript; None where none can
        come: in a thought, in an answer held to a form, where any message ends as a thought does.
        """
        family = self.tokenizer.format if self.tokenizer.thinks else None
        answers = transcript.closed and transcript.thinking
        free = constraint is None or constraint.kind == "tools"
        if family is None or family.direct or not (answers and free):
            return None
        opening, closing = family.open.strip(), family.close.strip()
        return SecondClose(opening, closing, transcript.reply, forced=transcript.forced)

    def conversation(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Messages in a form of which the template shows all; see `arrangements`.

        Raises:
            InvalidRequest: there is none.
            Unsupported: tools are part of it.
        """
        if _has_tools(messages):
            raise Unsupported("tools, which a chat server is not sent")
        form = self._form(_shape(messages), self.tokenizer.thinks, None)
        return arrangements(messages)[form.number]

    def before_assistant(self, messages: Sequence[Message]) -> str:
        """The text that the template writes between a `conversation` and the reply's content."""
        reply = Message("assistant", _unused(messages))
        text = self._written([*messages, reply], self.tokenizer.thinks)
        before, found, _ = text.partition(twins(reply.content))
        if not found:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        return plain(before)

    @property
    def _today(self) -> str:
        return self.tokenizer.chat_template.today

    def _render_prompt(
        self, messages: tuple[Message, ...], thinking: bool, owner: str, today: str
    ) -> _Prompt:
        """`owner` says for whom it is remembered, `today` (`ChatTemplate.today`) until when."""
        if messages[0].role == "prompt":
            return _Prompt(array("I", self._continued(messages[0])), thinking)
        given, tools, form, markup = messages, None, self._form, self._markup
        if _has_tools(messages):  # nothing of these is remembered: they are hardly ever the same
            tools, messages = self._with_tools(messages)
            form, markup = self._find_form, self.tokenizer.encode_markup
        found = form(_shape(messages), thinking, tools)
        text = self._written(arrangements(messages)[found.number], thinking, tools)
        if thinking and self._is_switched_off(text, found):
            return self._render_prompt(given, False, owner, today)
        ids = self._encode(text, self.tokenizer.encode_anew, markup)
        ids += markup(self._after_prompt(_tail(text), thinking, found))
        return _Prompt(array("I", ids), thinking)

    def _with_tools(self, messages: tuple[Message, ...]) -> tuple[Any, tuple[Message, ...]]:
        """The tools of a conversation, as the template is to get them, and its turns."""
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
        """The first arrangement in which the template shows all contents of a conversation, here
        marks, but for those beside calls."""
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
        """Whether a text in the conversation had the template end the thought."""
        family = self.tokenizer.format
        return family is not None and family.closes(_tail(text)) and not family.closes(form.tail)

    def _has_switch(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether the template has a switch for no thought. Granite's reads it only if there is no
        system message."""
        asked = ((messages, tools), ((Message("user", "?"),), None))
        return any(
            self._written(one, True, given) != self._written(one, False, given)
            for one, given in asked
        )

    def _after_prompt(self, tail: str, thinking: bool, form: _Form) -> str:
        """The markup that the template leaves to the model, between a prompt and the reply."""
        family = self.tokenizer.format
        if family is None:
            return ""
        if thinking:
            return "" if family.opens(tail) else family.open
        if family.opens(tail):
            return family.closing
        # A text may have the template leave a thought to the model in spite of its switch.
        switched = form.has_switch and not family.closes(form.tail)
        return "" if family.closes(tail) or switched else family.without

    def _render_side(self, turns: tuple[Message, ...]) -> tuple[int, ...]:
        """The ids after the assistant's turn of [user, assistant, *turns]."""
        shape = _shape(turns)
        if missing := [
            one for one in shape if twins(one.content) not in self._behind_answer(shape)
        ]:
            raise InvalidRequest(
                f"this model's chat template ignores turn {shape.index(missing[0])}"
            )
        text = self._behind_answer(turns)
        family, tail, ended = self.tokenizer.format, _tail(text), ""
        if family is not None and family.opens(tail):
            ended = family.closing
        elif family is not None and family.direct and not self._has_switch([Message("user", "?")]):
            ended = family.direct
        ids = self._encode(text, self.tokenizer.encode, self._markup)
        return (*ids, *self._markup(ended))

    def _behind_answer(self, turns: Sequence[Message]) -> str:
        """What the template writes after an answer that these turns follow."""
        answer = _unused(turns)
        question = f"{answer}?"
        text = self._written(
            [Message("user", question), Message("assistant", answer), *turns], False
        )
        _, found, behind = text.partition(twins(question))[2].partition(twins(answer))
        if not found:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        return behind

    def _written(self, messages: Sequence[Message], thinking: bool, tools: Any = None) -> str:
        """What the template writes of a conversation; it reads its texts, unless it refuses that.

        Raises:
            InvalidRequest: it refuses it anyway.
        """
        bare = [replace(message, reasoning="") for message in messages]
        refusal: Exception | None = None
        for one, reads in ((messages, True), (bare, True), (bare, False)):
            shown = [self._shown(message, reads) for message in one]
            try:
                return self._rendered(shown, thinking, tools)
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
    ) -> str:
        """What the template writes; without the beginning of a reply unless it `replies`."""
        family = self.tokenizer.format
        variables: Variables = {"tools": tools, "add_generation_prompt": replies}
        if family is not None:
            variables = {**variables, **(family.on if thinking else family.off)}
        return self.tokenizer.chat_template.render(messages, variables)

    def _shown(self, message: Message, reads: bool) -> dict[str, Any]:
        """A message as the template gets it, whether it `reads` the content or not."""
        # A marker in anyone else's text is a mention, which no template is to cut at.
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
        """An earlier call's, as the template wants them. A call that was cut off stays the text
        that it is; a template that wants an object gets an empty one."""
        assert self.calls is not None
        as_text = self.calls.text_arguments
        try:
            # JSON may escape half a surrogate pair, which no tokenizer takes.
            value = json.loads(text, parse_constant=_refused)
            given = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return self._safe(text.encode(errors="replace").decode()) if as_text else {}
        safe = self._safe(json.loads(given))
        return tojson(safe) if as_text else safe

    def _safe(self, value: Any) -> Any:
        """A value whose texts are traced where they spell markup of the model."""
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
        """A text that is continued as it is, after what every text begins with; or its ids."""
        if message.tokens is None:
            return (*self.tokenizer.begin, *self.tokenizer.encode_anew(message.content))
        if message.tokens and not self._is_known(message.tokens):
            raise InvalidRequest("the prompt holds ids outside the vocabulary", param="prompt")
        return message.tokens

    def _is_known(self, ids: Sequence[int]) -> bool:
        return min(ids) >= 0 and max(ids) < self._vocabulary

    def _ids(self, segments: Segments, added: Callable[[_Ids | None, Segment], _Ids]) -> list[int]:
        """The ids of segments; each segment's are kept with it (`fold`), and no joined list is:
        many transcripts branch off from one another, and each would hold all that it is made of."""
        node, parts = segments.fold(added, None), list[tuple[int, ...]]()
        while node is not None:
            parts.append(node.ids)
            node = node.before
        ids: list[int] = []
        for part in reversed(parts):
            ids.extend(part)
        return ids

    def _with_segment(self, before: _Ids | None, segment: Segment) -> _Ids:
        new = self.segment(segment)
        if new and not self._is_known(new):
            raise InvalidRequest("a segment holds ids outside the vocabulary", param="messages")
        return _Ids(before, new)

    def _with_answer(self, before: _Ids | None, segment: Segment) -> _Ids:
        """Behind what a model still thought the thought is closed again."""
        made = self._with_segment(before, segment)
        return _Ids(made, self._closing) if segment.finish == "think_end" else made

    def _encode(
        self,
        text: str,
        content: Callable[[str], Sequence[int]],
        markup: Callable[[str], Sequence[int]],
    ) -> list[int]:
        """The ids of what the template wrote, by an encoder of contents and one of markup."""
        parts, ids, spaces = list(pieces(text)), list[int](), ""
        for i, (piece, is_content) in enumerate(parts):
            if is_content:
                ids += content(spaces + piece)
                continue
            # A word is one token with the space before it, also where the template wrote that.
            kept = piece.rstrip(" ") if i + 1 < len(parts) else piece
            ids += markup(kept)
            spaces = piece[len(kept) :]
        return ids


def _bytes_of_ids(ids: Sequence[int]) -> int:
    return _TOKEN_BYTES * len(ids)


def _tail(text: str) -> str:
    """The markup at the end of what a template wrote."""
    *_, (last, is_content) = [("", False), *pieces(text)]
    return "" if is_content else last


def _mark(i: int) -> str:
    """A content that stands for message `i` of a shape."""
    return f"BATON{i:04d}MARK"


def _unused(messages: Sequence[Message]) -> str:
    """A content that none of these messages holds."""
    return next(one for one in map(_mark, count()) if not any(one in m.content for m in messages))


def _shape(messages: Sequence[Message]) -> tuple[Message, ...]:
    """A conversation with marks in place of its texts."""
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
    """Its characters."""
    called = sum(len(call.arguments) for call in message.calls)
    return len(message.content) + len(message.reasoning) + called


def _short_id(call_id: str) -> str:
    """A call's id as Mistral's templates want it: nine letters and digits."""
    if re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
