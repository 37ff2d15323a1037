"""Turns the chunks of a server's stream into the tokens of a text.

If the server returns ids, they count; its text, from which it may have cut stop strings and control
tokens, must agree with them. If it does not return all ids, its text is encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from orchestrator.errors import Contradiction
from orchestrator.types import Finish, Usage
from workers.remote.agreement import Agreement
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.openai import stop_strings
from workers.remote.errors import Foreign, Gap
from workers.remote.protocol import Chunk, Token, Vocabulary, usage
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.top_logprobs import probability


class ResponseParser:
    """One stream as it comes in; the text takes its tokens.

    Attributes:
        made: the tokens that the server made as far as is known, control tokens and cut ones
            included.
        finish: why the text ends, once it does.
        reason: the server's finish_reason, once it has ended.
        answer: the event with the usage.
        agreement: of the stream's ids and texts; a text that continues another takes its.
        last: how many tokens the last chunk had.
        inside: whether the server stopped at a delimiter that ends no step, as in a block of code.
    """

    def __init__(
        self,
        text: Continuation,
        prompts: PromptRenderer,
        able: ServerCapabilities,
        agreement: Agreement | None = None,
    ) -> None:
        self._text, self._able = text, able
        self._tokenizer = prompts.tokenizer
        begun = prompts.unfinished(text.call.transcript)
        self.agreement = agreement or Agreement(self._tokenizer, begun)
        self._ahead = b""  # bytes of our ids that the server has not shown yet
        self.made = self.last = self._seen = 0
        self._whole = True  # nothing was cut from a text that is encoded again
        self._unsent = 0  # tokens at the end that the server may have made and not sent, at most
        self.inside = False
        self.finish: Finish | None = None
        self.reason: str | None = None
        self.answer: Mapping[str, Any] = {}

    def read(self, event: Mapping[str, Any], vocabulary: Vocabulary) -> bool:
        """Take an event of the stream; return whether the rest need not be read.

        If the server ended by itself, an event with its usage follows.
        """
        self.answer = event if event.get("usage") else self.answer
        chunk = self._able.dialect.chunk(event, vocabulary)
        if chunk is None:
            return False
        if self.reason and (chunk.text or chunk.tokens):
            raise Contradiction("text came after the server had ended it")
        unended, found = not (self.reason or chunk.finish), self.finish
        self.reason = self.reason or chunk.finish
        if found is None:
            self.finish = self.push(chunk)
            if self.finish is None:
                return self.reason is not None
            return unended and not self._able.dialect.token_a_chunk
        if not unended:
            self._ended_unasked(chunk, found)
        return unended

    def usage(self, prompt: int, *, shared: bool) -> Usage:
        """Return the stream's cost, for a prompt of `prompt` ids; `shared` as for `protocol.usage`.

        Raises:
            Contradiction: the server's count is not that of the tokens that it sent.
        """
        text = self._text
        made = self.made or text.count
        if self.finish == "length":
            made = max(made, text.max_tokens)  # a text encoded again may have fewer tokens
        counts = usage(self.answer, 0, 0)
        if self.reason and counts.generated and counts.prompt == prompt:  # it counts as we do
            self._check_count(counts.generated, self.finish)
        spent = usage(self.answer, prompt, made, shared=shared)
        # With no tokens asked for, it prefilled at most.
        return replace(spent, generated=0) if text.max_tokens <= 0 else spent

    def may_go_on(self, given: int) -> bool:
        """Return whether a text that continues this one, of which `given` tokens were given out,
        may begin with the stream's next event; in doubt with the last one."""
        in_doubt = self.finish == "doubt"
        whole = self.made == self._seen and (self.last == 1 or not in_doubt) and not self._ahead
        return whole and self.reason is None and self.made - in_doubt == given

    def push(self, chunk: Chunk) -> Finish | None:
        """Take a chunk; return why the generation ends with it, if it does."""
        if not self._able.reads_ids:
            cut = self._text.push_text(chunk.text)
            self._whole = cut is None
            return cut or self._server_finish(chunk)
        tokens, finish = chunk.tokens or (), None
        self.last = len(tokens)
        self._seen += len(tokens)
        for place, token in enumerate(tokens, start=1):
            finish = self._token(token)
            if finish and (finish == "doubt" or place < len(tokens)):
                return finish  # the chunk's text is that of further tokens, too
        if self._able.dialect.token_a_chunk and not tokens and chunk.finish is None:
            raise Gap("ids")  # of a token that adds no text
        self.agreement.shown(chunk.text)
        return finish or self._server_finish(chunk)

    def _ended_unasked(self, chunk: Chunk, finish: Finish) -> None:
        """Take the server's last chunk, after the one that gave `finish`. If the server was not
        asked to stop, it may have ended with further tokens, which it counts and does not send."""
        stops = self._text.criteria.stop
        own = len(stop_strings(self._text, stops)) < len(stops)
        unasked = own if finish == "stop" else finish == "think_end" and not self._text.closing
        if unasked and chunk.finish == "stop":
            self._ends_unsent()

    def _ends_unsent(self) -> None:
        """Allow for an end token, and llama.cpp's unfinished character, counted and not sent."""
        self._unsent = 1 + self._able.dialect.left_out

    def _check_count(self, counted: int, finish: Finish | None) -> None:
        """Compare the tokens that the server sent with the number that it counts.

        The token that ends a text may be counted and not sent. A text that is encoded again may
        have a few tokens more or fewer than the model wrote.

        Raises:
            Contradiction: there are too few tokens, or too many.
        """
        if self._able.reads_ids:
            seen, more, less = self._seen, 0, self._unsent
            if finish == "length":
                less += self._able.dialect.left_out
        elif not self._whole:
            return
        else:
            seen = self._text.count
            less = more = 8 + max(counted, seen) // 4
        if not seen - more <= counted <= seen + less:
            raise Contradiction(
                f"expected the {counted} tokens that the server's usage counts, got {seen}: parts "
                "of its stream are lost, or came twice; check the proxies before it"
            )

    def _left_out(self, token: Token) -> list[int]:
        """Return the ids of the tokens before this one that the server left out.

        llama.cpp sends nothing for a token that ends inside a character; the token that completes
        the character comes with the bytes of all of them. Encoding the character finds the ids.
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
        if not 0 <= token.id < len(self._tokenizer.pieces):
            raise Foreign(
                f"the server returned token {token.id}, which the tokenizer of "
                f"{len(self._tokenizer.pieces)} tokens lacks; name the served model's as "
                "`tokenizer`"
            )
        criteria, confidence = self._text.criteria, 1.0
        if token.logprob is None and self._able.reads_logprobs:
            raise Gap("logprobs")
        if criteria.min_confidence > 0:
            own = -inf if token.logprob is None else token.logprob
            confidence = probability(max((*token.top.values(), own)))
        if token.id not in self._text.ends and confidence >= criteria.min_confidence:
            left_out = self._left_out(token)  # of no known log-probability
            if left_out and criteria.min_confidence > 0:
                return "doubt"
            for i in left_out:
                self.made += 1
                self._seen += 1
                self.agreement.made(i)
                if finish := self._text.push(i, 0.0, 1.0):
                    return finish
            self.agreement.made(token.id)
        return self._text.push(token.id, token.logprob or 0.0, confidence)

    def _server_finish(self, chunk: Chunk) -> Finish | None:
        """Return why the server ended the text, if nothing seen in it did."""
        if chunk.finish == "length":
            return "length"
        if chunk.finish != "stop":
            return None
        able, text = self._able, self._text
        if isinstance(chunk.stop, str) and able.reads_ids and chunk.stop not in text.criteria.until:
            return "think_end" if chunk.stop == text.closing else "stop"
        # A delimiter in the text may have ended no step; markers and stop strings would have been
        # seen. llama.cpp does not say at which string it stopped.
        until = stop_strings(text, text.criteria.until) if not able.dialect.names_stop else ()
        self.inside = able.reads_ids and (
            isinstance(chunk.stop, str) or any(one in text.text for one in until)
        )
        if self.inside:
            return "until"
        if not isinstance(chunk.stop, str):
            self._ends_unsent()
        # A thought that ends without a visible marker was closed by a hidden one.
        closed = not able.reads_ids or chunk.stop == self._tokenizer.close_id
        return "think_end" if text.closing and closed else text.end_of_turn()
