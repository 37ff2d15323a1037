"""Turns a transcript into token ids by the chat template; contents never become markup.

The template reads the conversation's texts (it may leave out an earlier thought, or obey a switch).
Its output is encoded as markup, except for contents.

Invariant: the ids of a transcript are a prefix of the ids of that transcript with one more segment,
because nothing is encoded across the border of a segment. Advice is no such segment: it is a turn
(`Transcript.turns`).
"""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

from orchestrator.errors import ConfigError, InvalidRequest, Unsupported
from orchestrator.types import CallFormat, Constraint, Message, Segment, Segments, Transcript
from workers.memo import remembered
from workers.text.checks import check_length
from workers.text.detokenizer import unfinished
from workers.text.rendering import ConversationRenderer, has_tools
from workers.text.second_close import SecondClose
from workers.text.tokenizer import Tokenizer
from workers.text.traced import pieces

FINAL_ANSWER = "\n\n**Final Answer**\n\n"
"""Text between another model's thought and the answer of a model that marks no thought. Without it,
this model takes the thought for its answer, and adds nothing."""
_LONG = 1 << 14  # characters of a prompt that a thread tokenizes, so that other calls need not wait
_PROMPT_BYTES, _MARKUP_BYTES = 32 << 20, 4 << 20  # of the caches of prompts and of markup
_TOKEN_BYTES = 16  # estimated size of an id of a prompt in an array, with its text


class _Prompt(NamedTuple):
    """A prompt's ids, and whether a thought follows."""

    ids: Sequence[int]
    thinks: bool


class _Ids(NamedTuple):
    """A segment's ids, and those of the segments before it."""

    before: _Ids | None
    ids: tuple[int, ...]


class PromptRenderer(ConversationRenderer):
    """Renders transcripts and side conversations for one checkpoint.

    `vocabulary` is the number of the model's ids, if it may be smaller than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int | None = None) -> None:
        super().__init__(tokenizer)
        self.vocabulary = min(vocabulary or len(tokenizer.pieces), len(tokenizer.pieces))
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
                self.written((Message("user", "?"),), thinking, "")
            self._side((Message("user", "?"),))
        except InvalidRequest as error:
            raise ConfigError(f"the chat template cannot render a question: {error}") from error

    async def prepare(
        self, transcript: Transcript, context: int | None, owner: str = ""
    ) -> list[int]:
        """Return the ids of `transcript`; a thread tokenizes long messages, one prompt at a time.
        Raise ContextLengthExceeded if these do not fit."""
        size = sum(map(_size, transcript.turns))
        if size > _LONG:
            check_length(int(size / self.tokenizer.token_chars), context, at_least=True)
            loop, asked = asyncio.get_running_loop(), self._asked(transcript, owner)
            prompt = await loop.run_in_executor(self._thread, self._prompt, *asked)
            check_length(len(prompt.ids), context)
        return self.transcript(transcript, owner)

    def transcript(self, transcript: Transcript, owner: str = "") -> list[int]:
        """Return the ids of everything accepted so far; the next token continues thought or answer.

        Those of messages are cached for their `owner` alone: the time of an answer must not show
        what another owner asked.
        """
        prompt = self._prompt(*self._asked(transcript, owner))
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
        return self._prompt(*self._asked(transcript, owner)).thinks

    def _asked(
        self, transcript: Transcript, owner: str
    ) -> tuple[tuple[Message, ...], bool, str, str, str]:
        """Return the arguments of `_prompt`."""
        thinks = transcript.thinking and self.tokenizer.thinks
        today = self.tokenizer.chat_template.today
        return transcript.turns, thinks, self._level(transcript), owner, today

    def answer(self, transcript: Transcript) -> Sequence[int]:
        """Return the ids of the answer so far, without a thought at its beginning."""
        parts = map(self.segment, transcript.answer[transcript.reply_start :])
        return [token for part in parts for token in part]

    def segment(self, segment: Segment) -> tuple[int, ...]:
        """Return a segment's ids in our vocabulary."""
        if segment.tokenizer == self.tokenizer.hash and segment.tokens:
            return segment.tokens
        if segment.author == "policy":  # may be a client's text, which must not be cached
            return self.tokenizer.encode_uncached(segment.text)
        return self.tokenizer.encode(segment.text)

    def verified(self, segment: Segment | None) -> tuple[int, ...]:
        """Return the ids of a segment to score, or none without a segment; raise Unsupported if its
        tokens belong to another vocabulary."""
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
        """Return a finder of a thought's end in a continuation: none in a thought, in a constrained
        answer, and if messages end with the thought's marker."""
        family = self.tokenizer.format if self.tokenizer.thinks else None
        answers = transcript.closed and transcript.thinking
        free = constraint is None or constraint.kind == "tools"
        if family is None or family.direct or not (answers and free):
            return None
        opening, closing = family.open.strip(), family.close.strip()
        return SecondClose(opening, closing, transcript.reply, forced=transcript.forced)

    def _render_prompt(
        self, messages: tuple[Message, ...], thinking: bool, level: str, owner: str, today: str
    ) -> _Prompt:
        """`owner` and `today` (`ChatTemplate.today`) are parts of the cache's key."""
        if messages[0].role == "prompt":
            return _Prompt(array("I", self._continued(messages[0])), thinking)
        text, after, thinks = self.written(messages, thinking, level)
        markup = self.tokenizer.encode_markup if has_tools(messages) else self._markup
        ids = self._encode(text, self.tokenizer.encode_uncached, markup)
        return _Prompt(array("I", [*ids, *markup(after)]), thinks)

    def _render_side(self, turns: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the ids after the assistant's turn of [user, assistant, *turns]."""
        text, after = self.written_after(turns)
        return (*self._encode(text, self.tokenizer.encode, self._markup), *self._markup(after))

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
        """Return the ids of segments. Each segment's are kept with it (`fold`), but no joined
        lists: transcripts that branch off from one another would each hold one."""
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


def _size(message: Message) -> int:
    """Return the number of characters."""
    called = sum(len(call.arguments) for call in message.calls)
    return len(message.content) + len(message.reasoning) + called
