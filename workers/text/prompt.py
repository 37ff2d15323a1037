"""From a transcript to token ids: the chat template, with contents that never become markup.

The template is rendered once per sequence of roles with placeholders in place of the contents;
what it wrote around them is encoded as markup, the contents as plain text. So no content
can influence the template, and rendering costs nothing after the first call.

Tools and earlier calls are the template's business as well: it gets them as they are, but for texts
that spell markup, for which there are placeholders too.

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
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from jinja2 import TemplateError

from orchestrator.errors import ConfigError, InvalidRequest, Unsupported
from orchestrator.types import CallFormat, Message, Segment, Segments, Transcript
from workers.memo import remembered
from workers.text.checks import check_length
from workers.text.detokenizer import unfinished
from workers.text.thinking import Variables
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import TOOLS, find_call_format

FINAL_ANSWER = "\n\n**Final Answer**\n\n"
"""Between a thought of somebody else's and the answer of a model that marks none: without it the
model takes the thought for its answer, and has nothing to add."""
_PLACEHOLDER = re.compile(r'BATON(\d{4,})(\\*)"SLOT')
"""Its quotation mark shows how often the template wrote it as JSON."""
LONG = 1 << 14
"""Characters of a prompt that is tokenized in a thread: other calls do not wait for it."""
_PROMPT_BYTES, _MARKUP_BYTES = 32 << 20, 4 << 20
"""What is kept of prompts, and of the markup between contents."""
_TOKEN_BYTES = 16
"""Of a prompt's id in an array, and of the text that it stands for, about."""


class Slot(NamedTuple):
    """Where a template wrote a content.

    Attributes:
        content: which one, by its index.
        escapes: how often it is written as a string of JSON: twice within JSON within JSON.
    """

    content: int
    escapes: int = 0


Part = Slot | str | tuple[int, ...]
"""A content's place, spaces of markup before one, or ids of markup."""


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
        self._opening = remembered(self._render_opening, _MARKUP_BYTES, _bytes_of_parts)
        self._side = remembered(self._render_side, _MARKUP_BYTES, _bytes_of_parts)
        self._prompt = remembered(
            self._render_prompt, _PROMPT_BYTES, lambda ids: _TOKEN_BYTES * len(ids)
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        closing = (
            tokenizer.encode_markup(tokenizer.format.closing)
            if tokenizer.format is not None and tokenizer.thinks
            else tokenizer.encode(FINAL_ANSWER)
        )
        self._closing = closing
        try:
            for thinking in (True, False):
                self._opening(("user",), thinking, self._today)
            self._side(("user",))
        except InvalidRequest as error:
            raise ConfigError(f"the chat template cannot render a question: {error}") from error

    async def prepare(
        self, transcript: Transcript, context: int | None, owner: str = ""
    ) -> list[int]:
        """The ids of `transcript`; messages that are too long for a context of so many tokens are
        refused, and those that are merely long tokenized by a thread, one prompt after the other.

        Raises:
            ContextLengthExceeded: they do not fit, however their text is cut into tokens.
        """
        messages = transcript.messages
        size = sum(map(_size, messages))
        if size > LONG:
            check_length(int(size / self.tokenizer.token_chars), context, at_least=True)
            thinking = transcript.thinking and self.tokenizer.thinks
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(
                self._thread, self._prompt, messages, thinking, owner, self._today
            )
            check_length(len(ids), context)
        return self.transcript(transcript, owner)

    def transcript(self, transcript: Transcript, owner: str = "") -> list[int]:
        """Ids of everything accepted so far; the next token continues thought or answer.

        Those of messages are remembered for their `owner` (`Call.owner`) alone: nobody is to tell
        from the time what somebody else asked.
        """
        thinking = transcript.thinking and self.tokenizer.thinks
        prompt = self._prompt(transcript.messages, thinking, owner, self._today)
        ids = [*prompt, *self._ids(transcript.thought)]
        if transcript.closed:
            if transcript.thinking:
                ids.extend(self._closing)
            ids.extend(self._ids(transcript.answer))
        return ids

    def answer(self, transcript: Transcript) -> Sequence[int]:
        """Ids of the answer so far."""
        return self._ids(transcript.answer)

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
        parts = self._side(tuple(turn.role for turn in turns))
        ids = self._fill(parts, [self._content(turn) for turn in turns], self.tokenizer.encode)
        return ids + list(self.tokenizer.encode(lead_in))

    @cached_property
    def calls(self) -> CallFormat | None:
        """How this model writes calls of tools; None: in no way that is known."""
        family, tokenizer = self.tokenizer.format, self.tokenizer
        marks = (family.open, family.close) if family else None
        if family is not None and family.answer:
            return None  # answers and calls begin otherwise, so the answer has begun too early
        special = [tokenizer.decode([i]) for i in sorted(tokenizer.controls)]
        return find_call_format(
            lambda messages, replies: self._written(messages, False, TOOLS, replies),
            [one for one in special if marks is None or one not in (marks[0] + marks[1])],
            marks,
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

    def before_assistant(self, messages: Sequence[Message]) -> str:
        """The text that the template writes between a conversation and the reply's content."""
        if _has_tools(messages):
            raise Unsupported("tools, which the server of a chat is not told of")
        roles = (*(message.role for message in messages), "assistant")
        texts = self._render(roles, self.tokenizer.thinks)
        places = _places(texts)
        if len(messages) not in places:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        texts = texts[: places[len(messages)]]
        contents = [self._content(message) for message in messages]
        return "".join(t if isinstance(t, str) else _written_at(t, contents) for t in texts)

    @property
    def _today(self) -> str:
        return self.tokenizer.chat_template.today

    def _render_prompt(
        self, messages: tuple[Message, ...], thinking: bool, owner: str, today: str
    ) -> Sequence[int]:
        """`owner` says for whom it is remembered, `today` (`ChatTemplate.today`) until when."""
        if messages[0].role == "prompt":
            return array("I", self._continued(messages[0]))
        if _has_tools(messages):
            return array("I", self._with_tools(messages, thinking))
        parts = self._opening(tuple(message.role for message in messages), thinking, today)
        contents = [self._content(message) for message in messages]
        return array("I", self._fill(parts, contents, self.tokenizer.encode_anew))

    def _with_tools(self, messages: tuple[Message, ...], thinking: bool) -> list[int]:
        """A conversation with tools, whose shape is hardly ever the same twice."""
        if self.calls is None:
            raise InvalidRequest(
                "tools: this model's chat template has no place for tools, or writes calls in a "
                "form that is not known here; ask without them, or serve another model",
                param="tools",
                code="unsupported_parameter",
            )
        tools = None
        if messages[0].role == "tools":
            tools, messages = json.loads(messages[0].content), messages[1:]
        if self.calls.between is None:
            messages = _one_call_a_turn(messages)
        contents = [self._content(message) for message in messages]
        shown = [self._shown(i, message, contents) for i, message in enumerate(messages)]
        texts = self._with_system(shown, thinking, self._safe(tools, contents))
        needed = {i for i, message in enumerate(messages) if message.content and not message.calls}
        if missing := needed - _places(texts).keys():
            role = messages[min(missing)].role
            raise InvalidRequest(f"this model's chat template ignores {role} messages here")
        markup = "".join(text for text in texts if isinstance(text, str))
        if not all(tool["function"]["name"] in markup for tool in tools or ()):
            raise InvalidRequest(
                "tools: this model's chat template does not show them here", param="tools"
            )
        after = self._after_prompt(("user",), texts, thinking)
        return self._fill(self._encode([*texts, after]), contents, self.tokenizer.encode_anew)

    def _with_system(
        self, shown: Sequence[Mapping[str, Any]], thinking: bool, tools: Any
    ) -> list[Slot | str]:
        """What the template writes of a conversation with tools. Some refuse a system message, or
        drop it behind what a tool gave back: there it begins the last question, as in Mistral's own
        tokenizer."""
        system, *rest = shown
        questions = [i for i, message in enumerate(rest) if message["role"] == "user"]
        inside = system["role"] == "system" and system["content"] and questions
        try:
            texts = self._pieces(shown, thinking, tools)
            if not inside or 0 in _places(texts):
                return texts
        except InvalidRequest:
            if not inside:
                raise
        asked = rest[questions[-1]]
        rest[questions[-1]] = {**asked, "content": f"{system['content']}\n\n{asked['content']}"}
        return self._pieces(rest, thinking, tools)

    def _shown(self, i: int, message: Message, contents: list[str]) -> dict[str, Any]:
        """A message as the template gets it; texts that it must not read go into `contents`."""
        shown: dict[str, Any] = {"role": message.role, "content": message.content and _slot(i)}
        if message.calls and self.calls is not None:
            if message.reasoning:
                contents.append(message.reasoning)
                shown["reasoning_content"] = _slot(len(contents) - 1)
            shown["tool_calls"] = [
                {
                    "id": _short_id(call.id),
                    "type": "function",
                    "function": {
                        "name": self._safe(call.name, contents),
                        "arguments": self._arguments(call.arguments, contents),
                    },
                }
                for call in message.calls
            ]
        if message.role == "tool":
            shown["tool_call_id"] = _short_id(message.call_id)
            shown["name"] = self._safe(message.name, contents)
        return shown

    def _arguments(self, text: str, contents: list[str]) -> Any:
        assert self.calls is not None
        # JSON may escape half a surrogate pair, which no tokenizer takes.
        plain = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
        safe = self._safe(json.loads(plain), contents)
        return json.dumps(safe, ensure_ascii=False) if self.calls.text_arguments else safe

    def _safe(self, value: Any, contents: list[str]) -> Any:
        """A value without texts that spell markup: placeholders stand for them."""
        if isinstance(value, dict):
            if self._is_unsafe("\n".join(value)):
                raise InvalidRequest(
                    "tools: a name in them spells markup of this model", param="tools"
                )
            return {name: self._safe(one, contents) for name, one in value.items()}
        if isinstance(value, list):
            return [self._safe(one, contents) for one in value]
        if isinstance(value, str) and self._is_unsafe(value):
            contents.append(value)
            return _slot(len(contents) - 1)
        return value

    def _content(self, message: Message) -> str:
        """A message's content as the template would write it."""
        return message.content.strip() if message.role in self._trimmed else message.content

    @cached_property
    def _trimmed(self) -> frozenset[str]:
        """Roles whose contents the template writes without the white space around them, as those of
        Llama 3 and Gemma do; of placeholders, which have none, it is not seen."""
        trimmed, kept = set[str](), set[str]()
        for roles in (("system", "user"), ("user", "assistant", "user")):
            messages = [{"role": r, "content": f"\x1f{_slot(i)}\x1f"} for i, r in enumerate(roles)]
            with suppress(TemplateError, TypeError, ValueError):
                text = self._written(messages, thinking=False)
                space = r"(\x1f|\\u001f)?"  # as it is, or as `tojson` writes it
                for before, i, _, after in re.findall(space + _PLACEHOLDER.pattern + space, text):
                    (kept if before or after else trimmed).add(roles[int(i)])
        return frozenset(trimmed - kept)

    def _is_unsafe(self, text: str) -> bool:
        """Whether a text spells markup of the model, or one of our placeholders."""
        if _PLACEHOLDER.search(text):
            return True
        return not self.tokenizer.added.isdisjoint(self.tokenizer.encode_markup(text))

    def _continued(self, message: Message) -> tuple[int, ...]:
        """A text that is continued as it is, behind what every text begins with; or its ids."""
        if message.tokens is None:
            return (*self.tokenizer.begin, *self.tokenizer.encode_anew(message.content))
        if message.tokens and not self._is_known(message.tokens):
            raise InvalidRequest("the prompt holds ids outside the vocabulary", param="prompt")
        return message.tokens

    def _is_known(self, ids: Sequence[int]) -> bool:
        return min(ids) >= 0 and max(ids) < self._vocabulary

    def _ids(self, segments: Segments) -> list[int]:
        """The ids of segments; each segment's are kept with it (`fold`), and no joined list is:
        many transcripts branch off from one another, and each would hold all that it is made of."""
        node, parts = segments.fold(self._with_segment, None), list[tuple[int, ...]]()
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

    def _fill(
        self,
        parts: Sequence[Part],
        contents: Sequence[str],
        encode: Callable[[str], Sequence[int]],
    ) -> list[int]:
        ids, spaces = list[int](), ""
        for part in parts:
            if isinstance(part, str):
                spaces = part
            elif isinstance(part, Slot):
                ids.extend(encode(spaces + _written_at(part, contents)))
                spaces = ""
            else:
                ids.extend(part)
        return ids

    def _render_opening(
        self, roles: tuple[str, ...], thinking: bool, today: str
    ) -> tuple[Part, ...]:
        """Parts of the conversation up to where the thought begins, or an answer without one; it is
        remembered for `today`."""
        texts = self._render(roles, thinking)
        if missing := set(range(len(roles))) - _places(texts).keys():
            role = roles[min(missing)]
            raise InvalidRequest(f"this model's chat template ignores {role} messages here")
        return self._encode([*texts, self._after_prompt(roles, texts, thinking)])

    def _after_prompt(
        self, roles: tuple[str, ...], texts: Sequence[Slot | str], thinking: bool
    ) -> str:
        """The markup that the template leaves to the model, between a prompt and the reply."""
        family, tail = self.tokenizer.format, texts[-1] if isinstance(texts[-1], str) else ""
        if family is None:
            return ""
        if thinking:
            return "" if family.opens(tail) else family.open
        if family.opens(tail):
            return family.closing
        if family.closes(tail) or self._has_switch(roles):
            return ""
        return family.without

    def _has_switch(self, roles: tuple[str, ...]) -> bool:
        """Whether the template itself can be told that there is to be no thought. Granite's reads
        that only where there is no system message."""
        asked = (roles, ("user",))
        return any(self._render(one, True) != self._render(one, False) for one in asked)

    def _render_side(self, roles: tuple[str, ...]) -> tuple[Part, ...]:
        """Parts after the assistant's turn of [user, assistant, *turns]."""
        texts = self._render(("user", "assistant", *roles), thinking=False)
        places = _places(texts)
        if 1 not in places:
            raise InvalidRequest("this model's chat template ignores assistant messages")
        if missing := {i for i in range(len(roles)) if places.get(i + 2, 0) <= places[1]}:
            raise InvalidRequest(f"this model's chat template ignores turn {min(missing)}")
        texts = [
            text if isinstance(text, str) else text._replace(content=text.content - 2)
            for text in texts[places[1] + 1 :]
        ]
        family, tail = self.tokenizer.format, texts[-1] if isinstance(texts[-1], str) else ""
        ended = ""
        if family is not None and family.opens(tail):
            ended = family.closing
        elif family is not None and family.direct and not self._has_switch(("user",)):
            ended = family.direct
        return self._encode([*texts, ended])

    def _render(self, roles: tuple[str, ...], thinking: bool) -> list[Slot | str]:
        """What the template writes: text, and the places of the messages' contents."""
        return self._pieces(
            [{"role": role, "content": _slot(i)} for i, role in enumerate(roles)], thinking
        )

    def _pieces(
        self, messages: Sequence[Mapping[str, Any]], thinking: bool, tools: Any = None
    ) -> list[Slot | str]:
        """The same of messages that hold placeholders."""
        try:
            text = self._written(messages, thinking, tools)
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InvalidRequest(
                f"this model's chat template refuses the roles {roles}: {error}", param="messages"
            ) from error
        found, *behind = _PLACEHOLDER.split(text)
        pieces: list[Slot | str] = [found]
        for i, escapes, between in zip(*(behind[k::3] for k in range(3)), strict=True):
            pieces += [Slot(int(i), len(escapes).bit_length()), between]
        return [piece for piece in pieces if piece]

    def _written(
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

    def _encode(self, texts: Sequence[Slot | str]) -> tuple[Part, ...]:
        parts = list[Part]()
        for text, behind in pairwise((*texts, "")):
            if isinstance(text, Slot):
                parts.append(text)
                continue
            # A word is one token with the space before it, also where the template wrote that.
            markup = text.rstrip(" ") if isinstance(behind, Slot) else text
            both = self.tokenizer.encode_markup(markup), text[len(markup) :]
            parts.extend(part for part in both if part)
        return tuple(parts)


def _bytes_of_parts(parts: Sequence[Part]) -> int:
    return 64 * sum(1 + len(part) for part in parts)


def _has_tools(messages: Sequence[Message]) -> bool:
    """Whether tools, or calls of them, are part of a conversation."""
    return any(message.calls or message.role in ("tool", "tools") for message in messages)


def _size(message: Message) -> int:
    """Its characters."""
    called = sum(len(call.arguments) for call in message.calls)
    return len(message.content) + len(message.reasoning) + called


def _slot(i: int) -> str:
    return f'BATON{i:04d}"SLOT'


def _places(texts: Sequence[Slot | str]) -> dict[int, int]:
    """Where contents stand first among these, by their indices."""
    found = [(text.content, at) for at, text in enumerate(texts) if isinstance(text, Slot)]
    return dict(reversed(found))


def _written_at(slot: Slot, contents: Sequence[str]) -> str:
    """A content as the template would have written it there."""
    text = contents[slot.content]
    for _ in range(slot.escapes):
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return text


def _short_id(call_id: str) -> str:
    """A call's id as Mistral's templates want it: nine letters and digits."""
    if re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]


def _one_call_a_turn(messages: Sequence[Message]) -> tuple[Message, ...]:
    """A conversation for a template that writes one call a turn: behind each call stands what it
    gave back."""
    turns, left = list[Message](), list(messages)
    while left:
        message = left.pop(0)
        results = left[: next((i for i, one in enumerate(left) if one.role != "tool"), len(left))]
        if len(message.calls) < 2:
            turns.append(message)
            continue
        left = left[len(results) :]
        for call in message.calls:
            turns.append(replace(message, calls=(call,)))
            message = replace(message, content="", reasoning="")
            if behind := [one for one in results if one.call_id == call.id][:1]:
                turns += behind
                results.remove(behind[0])
        turns += results
    return tuple(turns)
