"""From the chunks of a server's stream to text, tokens, and why they end.

Where the server returns ids, they are what counts: its text is what is left after it has cut stop
strings and control tokens, and so must be the beginning of theirs. Where it returns none, or not of
all tokens, its text is encoded again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

from orchestrator.errors import Contradiction
from orchestrator.types import Author, Finish, Segment, StopCriteria, Transcript
from orchestrator.worker import Delta
from workers.remote.agreement import Agreement
from workers.remote.errors import Foreign, Gap
from workers.remote.gaps import Missing
from workers.remote.protocol import Chunk, ServerCapabilities, Token
from workers.text.boundaries import StepEnd, begun
from workers.text.checks import answer_reserve
from workers.text.detokenizer import Detokenizer, Stop
from workers.text.retokenizer import Retokenizer
from workers.text.second_close import SecondClose
from workers.text.tokenizer import Tokenizer
from workers.top_logprobs import probability

LEFT_OUT = 3
"""Tokens at the end of a text that llama.cpp may count and not send: those of a character that was
not completed."""


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """What a generation is to be.

    remaining_tokens: most tokens that the criteria and the context allow.
    thinking: whether it continues the thought, not the answer.
    begins_answer: whether it begins an answer.
    begun: the text of the unfinished step before it.
    stop_token_ids: ids of control tokens, all of which end it.
    """

    criteria: StopCriteria
    remaining_tokens: int
    thinking: bool
    begins_answer: bool
    begun: str
    stop_token_ids: Collection[int]

    @classmethod
    def of(
        cls,
        transcript: Transcript,
        length: int,
        criteria: StopCriteria,
        context: int | None,
        stop_token_ids: Collection[int],
    ) -> ParserOptions:
        """`length` is that of the rendered transcript, `context` the model's where it is known."""
        thinking, remaining_tokens = not transcript.closed, criteria.max_tokens
        if context is not None:
            remaining_tokens = min(
                remaining_tokens, context - length - thinking * answer_reserve(context)
            )
        step = begun(transcript, criteria.until)
        first = transcript.begins_answer
        return cls(criteria, remaining_tokens, thinking, first, step, stop_token_ids)

    def stop_fields(
        self, tokenizer: Tokenizer, capabilities: ServerCapabilities
    ) -> dict[str, object]:
        """The request fields that let the server stop by itself.

        Without ids only at the end of the thought, which may be invisible in the text: a server
        cuts any other stop string off without returning which it was. Those are searched for here.
        """
        closing = closing_marker(tokenizer, self.thinking)
        if self.criteria.min_tokens:  # it would let none of these come; those that may, we find
            ends = set(self.stop_token_ids) - ({tokenizer.close_id} if closing else set())
            least = min(self.criteria.min_tokens, self.remaining_tokens)
            return {"min_tokens": least, "stop_token_ids": sorted(ends)}
        if not capabilities.reads_ids:
            stop = marker_stop(closing, tokenizer, capabilities) if closing else {}
            return stop | shown_markers(tokenizer, capabilities)
        texts = self.looked_for((*self.criteria.until, *self.criteria.stop))
        fields: dict[str, object] = {}
        if closing and tokenizer.close_id is not None:
            fields["stop_token_ids"] = [tokenizer.close_id]
        else:
            texts += [text for text, _ in tokenizer.stops(self.thinking)]
        return fields | ({"stop": texts} if texts else {})

    @property
    def until(self) -> list[str]:
        """The delimiters at which a server may stop."""
        return self.looked_for(self.criteria.until)

    def looked_for(self, texts: Sequence[str]) -> list[str]:
        """None is looked for in the white space before an answer."""
        return [text for text in texts if not self.begins_answer or text == text.lstrip()]


def closing_marker(tokenizer: Tokenizer, thinking: bool) -> str:
    """The text that ends a thought; empty in an answer, and where the model marks no thought."""
    if not thinking or not tokenizer.thinks or tokenizer.format is None:
        return ""
    return tokenizer.format.close.strip()


def marker_stop(
    closing: str, tokenizer: Tokenizer, capabilities: ServerCapabilities
) -> dict[str, object]:
    """The request fields by which a server without ids stops at a marker, also where its text hides
    it."""
    fields: dict[str, object] = {"stop": [closing]}
    if capabilities.extras and tokenizer.close_id is not None:
        fields |= {"stop_token_ids": [tokenizer.close_id]}
    return fields


def shown_markers(tokenizer: Tokenizer, capabilities: ServerCapabilities) -> dict[str, object]:
    """The request field by which llama.cpp's text shows the markers of a thought."""
    if not capabilities.extras or tokenizer.close_id is None or tokenizer.format is None:
        return {}
    return {"preserved_tokens": [tokenizer.format.open.strip(), tokenizer.format.close.strip()]}


class ResponseParser:
    """One generation as it comes in.

    `unfinished_bytes` are the bytes of a character that the transcript left unfinished.

    Attributes:
        made: tokens that the server is known to have made, with control tokens and those that were
            cut.
        missing: what it lacked, where the capabilities say that something is missing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        capabilities: ServerCapabilities,
        options: ParserOptions,
        unfinished_bytes: bytes = b"",
        second_close: SecondClose | None = None,
    ) -> None:
        self._tokenizer, self._capabilities, self._options = tokenizer, capabilities, options
        criteria, self._closing = options.criteria, closing_marker(tokenizer, options.thinking)
        stops: list[Stop] = [(stop, "stop") for stop in criteria.stop]
        stops += tokenizer.stops(options.thinking)
        if self._closing and tokenizer.close_id is not None and not capabilities.reads_ids:
            stops.append((self._closing, "think_end"))
        until = StepEnd(criteria.until, options.begun)
        self._detokenizer = Detokenizer(
            tokenizer.pieces,
            tokenizer.encode,
            until,
            stops,
            begins_answer=options.begins_answer,
            min_tokens=criteria.min_tokens,
            unfinished_bytes=unfinished_bytes,
            second_close=second_close if capabilities.reads_ids else None,
        )
        self._retokenizer = Retokenizer(
            tokenizer.encode,
            until,
            stops,
            begins_answer=options.begins_answer,
            second_close=None if capabilities.reads_ids else second_close,
        )
        self._source: Detokenizer | Retokenizer = (
            self._detokenizer if capabilities.reads_ids else self._retokenizer
        )
        self._agreement = Agreement(tokenizer, unfinished_bytes)
        self._ahead = b""  # of our ids' bytes, what the server has not shown yet
        self.made = self._seen = 0
        self._whole = True  # nothing was cut from a text that is encoded again
        self._unsent = 0  # most tokens at its end that the server may have made and not sent
        self.missing: Missing = None

    def push(self, chunk: Chunk) -> Finish | None:
        """Append a chunk; returns why the generation ends with it, if it does."""
        finish = self._push(chunk)
        return "think_end" if finish == "eos" and self._source.closed() else finish

    def _push(self, chunk: Chunk) -> Finish | None:
        if self._capabilities.missing:
            self._look_for_gaps(chunk)
        if not self._capabilities.reads_ids:
            cut = self._retokenizer.push(chunk.text)
            self._whole = cut is None
            return cut or self._server_finish(chunk)
        tokens, finish = chunk.tokens or (), None
        self._seen += len(tokens)
        for place, token in enumerate(tokens, start=1):
            finish = self._token(token)
            if finish and (finish == "doubt" or place < len(tokens)):
                return finish  # the chunk's text is that of further tokens, too
        if self._capabilities.numbered and not tokens and chunk.finish is None:
            raise Gap("ids")  # of a token that adds no text: llama.cpp sends one a chunk
        self._agreement.shown(chunk.text)
        return finish or self._server_finish(chunk)

    def _look_for_gaps(self, chunk: Chunk) -> None:
        able, tokens = self._capabilities, chunk.tokens or ()
        sent = chunk.text or (able.numbered and chunk.finish is None)
        if able.ids and sent and not tokens:
            self.missing = "ids"
        elif able.top and self.missing is None and any(token.logprob is None for token in tokens):
            self.missing = "logprobs"

    def ended_unasked(self, chunk: Chunk, finish: Finish) -> None:
        """Take the server's last chunk, after the one that gave `finish`: where the server was not
        asked to stop, it may have ended with tokens more, which it counts and does not send."""
        stops = self._options.criteria.stop
        own = len(self._options.looked_for(stops)) < len(stops)
        unasked = own if finish == "stop" else finish == "think_end" and not self._closing
        if unasked and chunk.finish == "stop":
            self._ends_unsent()

    def _ends_unsent(self) -> None:
        """Take an end by a token that was not sent. llama.cpp sends it but after a character that
        was not completed, whose tokens it leaves out as well."""
        self._unsent = 1 + LEFT_OUT * self._capabilities.numbered

    def check_count(self, told: int, finish: Finish) -> None:
        """Compare all that the server sent with how many tokens it says that it made.

        The token that ends a text may be counted and not sent. A text that is encoded again may
        have a few tokens more or fewer than the model wrote.

        Raises:
            Contradiction: there is too little text, or too much.
        """
        if self._capabilities.reads_ids:
            seen, more, less = self._seen, 0, self._unsent
            if self._capabilities.numbered and finish == "length":
                less = LEFT_OUT
        elif not self._whole:
            return
        else:
            seen = len(self._retokenizer.tokens)
            less = more = 8 + max(told, seen) // 4
        if not seen - more <= told <= seen + less:
            raise Contradiction(
                f"expected the {told} tokens that the server's usage counts, got {seen}: parts of "
                "its stream are lost, or came twice; check the proxies before it"
            )

    def take(self) -> Delta | None:
        """What has become final since the last time, if anything."""
        return self._bare(self._source.take())

    def end(self) -> Delta | None:
        """The rest, once nothing more comes."""
        return self._bare(self._source.end())

    def segment(self, author: str, finish: Finish) -> Segment:
        """All of it, signed; no log-probabilities where the server returns none."""
        source = self._source
        has_logprobs = self._capabilities.reads_logprobs
        return Segment(
            author=cast("Author", author),
            text=source.text,
            tokens=tuple(source.tokens),
            logprobs=tuple(self._detokenizer.logprobs) if has_logprobs else (),
            tokenizer=self._tokenizer.hash,
            finish=finish,
        )

    def _left_out(self, token: Token) -> list[int]:
        """Ids of the tokens before this one that the server left out.

        llama.cpp sends nothing for a token that ends inside a character, and with the one that
        completes the character the bytes of all of them. Which tokens those were is found by
        encoding the character.
        """
        if token.shown is None:
            return []
        tokenizer = self._tokenizer
        piece, shown = tokenizer.pieces[token.id], token.shown
        if (self._ahead + piece).startswith(shown):  # text may be held: it may begin a stop string
            self._ahead = (self._ahead + piece)[len(shown) :]
            return []
        size = next(n for n in range(len(piece), -1, -1) if shown.endswith(piece[:n]))
        missing = shown[: len(shown) - size].removeprefix(self._ahead)
        self._ahead = piece[size:]
        *ids, last = tokenizer.encode((missing + piece).decode("utf-8", "replace")) or (token.id,)
        if b"".join(tokenizer.pieces[i] for i in ids) != missing or last != token.id:
            single = [bytes([byte]) for byte in missing]
            ids = [tokenizer.pieces.index(byte) for byte in single if byte in tokenizer.pieces]
        return ids

    def _token(self, token: Token) -> Finish | None:
        self.made += 1
        options = self._options
        if not 0 <= token.id < len(self._tokenizer.pieces):
            raise Foreign(
                f"the server returned token {token.id}, which the tokenizer of "
                f"{len(self._tokenizer.pieces)} tokens lacks: check that it is the served model's"
            )
        if token.logprob is None and self._capabilities.reads_logprobs:
            raise Gap("logprobs")
        if options.criteria.min_confidence > 0:
            best = max((*token.top.values(), -inf if token.logprob is None else token.logprob))
            if probability(best) < options.criteria.min_confidence:
                return "doubt"
        if token.id in options.stop_token_ids:
            closing = options.thinking and token.id == self._tokenizer.close_id
            return "think_end" if closing else "eos"
        left_out = self._left_out(token)  # of no known log-probability
        if left_out and options.criteria.min_confidence > 0:
            return "doubt"
        for i in left_out:
            self.made += 1
            self._seen += 1
            self._agreement.made(i)
            if finish := self._detokenizer.push(i, 0.0):
                return finish
        self._agreement.made(token.id)
        finish = self._detokenizer.push(token.id, token.logprob or 0.0)
        return finish or ("length" if self.made >= options.remaining_tokens else None)

    def _server_finish(self, chunk: Chunk) -> Finish | None:
        """Why the server ended it where nothing that we saw did."""
        if chunk.finish == "length":
            return "length"
        if chunk.finish != "stop":
            return None
        if isinstance(chunk.stop, str) and self._capabilities.reads_ids:
            if chunk.stop in self._options.criteria.until:
                return "until"
            return "think_end" if chunk.stop == self._closing else "stop"
        if self._capabilities.numbered and self._capabilities.reads_ids:
            # llama.cpp does not say at what it stopped. A delimiter that ended no step is in the
            # text all the same, and the worker goes on behind it; markers and stop strings would
            # have been seen.
            text = self._detokenizer.text
            if any(one in text for one in self._options.until):
                return "until"
        if not isinstance(chunk.stop, str):
            self._ends_unsent()
        # A thought that ends with no sign in its text was closed by its (invisible) marker.
        return "think_end" if self._closing and self._closed(chunk) else "eos"

    def _closed(self, chunk: Chunk) -> bool:
        return not self._capabilities.reads_ids or chunk.stop == self._tokenizer.close_id

    def _bare(self, delta: Delta | None) -> Delta | None:
        if delta is None or self._capabilities.reads_logprobs:
            return delta
        return Delta(delta.text, delta.tokens)
