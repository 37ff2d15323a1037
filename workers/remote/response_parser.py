"""From the chunks of a server's stream to text, tokens, and why they end.

Where the server tells ids, they alone count: its text is what is left after it has cut stop
strings and control tokens. Where it tells none, its text is encoded again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from orchestrator.errors import WorkerError
from orchestrator.types import Author, Finish, Segment, StopCriteria, Transcript
from orchestrator.worker import Delta
from workers.remote.logprobs import entropy, probability
from workers.remote.protocol import Piece, ServerCapabilities, Token
from workers.text.checks import answer_room
from workers.text.detokenizer import Detokenizer, Stop
from workers.text.retokenizer import Retokenizer
from workers.text.tokenizer import CLOSE, Tokenizer


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """What a generation was asked for.

    `room`: tokens that fit the span and the context; `fresh`: whether it begins an answer;
    `ends`: ids of control tokens, all of which end it.
    """

    criteria: StopCriteria
    room: int
    thinking: bool
    fresh: bool
    ends: Collection[int]

    @classmethod
    def of(
        cls,
        transcript: Transcript,
        length: int,
        criteria: StopCriteria,
        context: int | None,
        ends: Collection[int],
    ) -> ParserOptions:
        """`length` is that of the rendered transcript, `context` the model's where it is known."""
        thinking, room = not transcript.closed, criteria.max_tokens
        if context is not None:
            room = min(room, context - length - thinking * answer_room(context))
        fresh = not thinking and not any(part.text.strip() for part in transcript.answer)
        return cls(criteria, room, thinking, fresh, ends)

    def stops(self, tokenizer: Tokenizer, able: ServerCapabilities) -> dict[str, object]:
        """The request fields that let the server stop by itself.

        Without ids only at the end of the thought, which may be invisible in the text: a server
        would cut any other stop string off and not say which it was. Those are found here.
        """
        if not able.ids:
            return {"stop": [CLOSE]} if self.thinking else {}
        texts = [*self.criteria.until, *self.criteria.stop]
        if self.fresh:  # none is looked for in the white space before an answer
            texts = [text for text in texts if text == text.lstrip()]
        fields: dict[str, object] = {}
        if self.thinking and tokenizer.close_id is None:
            texts.append(CLOSE)
        elif self.thinking:
            fields["stop_token_ids"] = [tokenizer.close_id]
        return fields | ({"stop": texts} if texts else {})


class ResponseParser:
    """One generation as it comes in.

    `begun` are the bytes of a character that the transcript left unfinished.

    Attributes:
        entropy: an estimate of that of the first token's law where the span asks, see
            `workers.remote.logprobs.entropy`.
        withheld: whether that is too high, and so nothing is written.
        made: tokens that the server is known to have made; those of control and those that were
            cut are among them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        able: ServerCapabilities,
        asked: ParserOptions,
        begun: bytes = b"",
    ) -> None:
        self._tokenizer, self._able, self._asked = tokenizer, able, asked
        criteria, close = (
            asked.criteria,
            asked.thinking and (tokenizer.close_id is None or not able.ids),
        )
        stops: list[Stop] = [(stop, "stop") for stop in criteria.stop]
        if close:
            stops.append((CLOSE, "think_end"))
        self._writer = Detokenizer(
            tokenizer.pieces,
            tokenizer.encode,
            criteria.until,
            stops,
            fresh=asked.fresh,
            begun=begun,
        )
        self._text = Retokenizer(tokenizer.encode, criteria.until, stops, fresh=asked.fresh)
        self._source: Detokenizer | Retokenizer = self._writer if able.ids else self._text
        self.made = 0
        self.entropy: float | None = None
        self.withheld = False

    def push(self, piece: Piece) -> Finish | None:
        """Take a chunk; says why the generation ends with it, if it does."""
        if self._able.ids:
            for token in piece.tokens or ():
                self.made += 1
                if finish := self._token(token):
                    return finish
        elif finish := self._text.push(piece.text):
            return finish
        return self._server_finish(piece)

    def take(self) -> Delta | None:
        """What has become final since the last time, if anything."""
        return self._bare(self._source.take())

    def end(self) -> Delta | None:
        """The rest, once nothing more comes."""
        return self._bare(self._source.end())

    def segment(self, author: str, finish: Finish) -> Segment:
        """All of it, signed; no log-probabilities where the server tells none."""
        source, told = self._source, self._able.top and self._able.ids
        return Segment(
            author=cast("Author", author),
            text=source.text,
            tokens=tuple(source.tokens),
            logprobs=tuple(self._writer.logprobs) if told else (),
            tokenizer=self._tokenizer.hash,
            finish=finish,
        )

    def _token(self, token: Token) -> Finish | None:
        asked = self._asked
        if not 0 <= token.id < len(self._tokenizer.pieces):
            raise WorkerError(f"the server made token {token.id}, which our tokenizer lacks")
        if asked.criteria.max_entropy is not None and self.entropy is None:
            if not token.top:
                raise WorkerError("the server left out the first token's log-probabilities")
            self.entropy = entropy(token.top, self._able.top)
            self.withheld = self.entropy > asked.criteria.max_entropy
            if self.withheld:
                return "doubt"
        if asked.criteria.min_confidence > 0:
            best = max((*token.top.values(), token.logprob or -1e9))
            if probability(best) < asked.criteria.min_confidence:
                return "doubt"
        if token.id in asked.ends:
            closing = asked.thinking and token.id == self._tokenizer.close_id
            return "think_end" if closing else "eos"
        finish = self._writer.push(token.id, token.logprob or 0.0)
        return finish or ("length" if self.made >= asked.room else None)

    def _server_finish(self, piece: Piece) -> Finish | None:
        """Why the server ended it where nothing that we saw did."""
        if piece.finish == "length":
            return "length"
        if piece.finish != "stop":
            return None
        if isinstance(piece.stop, str) and self._able.ids:
            if piece.stop in self._asked.criteria.until:
                return "until"
            return "think_end" if piece.stop == CLOSE else "stop"
        # A thought that ends with no sign in its text was closed by its (invisible) marker.
        return "think_end" if self._asked.thinking and self._closed(piece) else "eos"

    def _closed(self, piece: Piece) -> bool:
        return not self._able.ids or piece.stop == self._tokenizer.close_id

    def _bare(self, delta: Delta | None) -> Delta | None:
        if delta is None or self._able.top:
            return delta
        return Delta(delta.text, delta.tokens)
