"""Log-probabilities of an answer's tokens, each under the model that wrote it.

After the answer the worker that wrote a segment verifies it, at temperature 1 and without the
answer's constraint. So the log-probabilities are the model's own, whatever the request's sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter

from orchestrator.errors import InvalidRequest, Unsupported, WorkerUnavailable
from orchestrator.http.ask import Choice
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import Verify, WorkerName
from orchestrator.types import LikelyToken, Sampling, Segment, Transcript, Verification
from orchestrator.worker import Call, Worker


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability (natural log).

    `text` is what it adds to the text, maybe nothing; `name` is `text`, or the id if that is empty.
    """

    name: str
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredSegment:
    """A segment, and a worker's verification of it."""

    segment: Segment
    scores: Verification

    def tokens(self) -> Iterator[tuple[TokenScore, list[TokenScore]]]:
        """Yield each token with the most likely ones in its place."""
        scores, ids = self.scores, self.segment.tokens
        for i, (piece, nll) in enumerate(zip(scores.pieces, scores.nll, strict=True)):
            choice, logprob = scores.choices[i], scores.logprobs[i]
            # Without ids: the token is the worker's choice if it has the same log-probability.
            known = ids[i] if len(ids) == len(scores.pieces) else None
            token = choice if known is None and logprob == -nll else known
            name = piece if token is None else token_name(piece, token)
            # The token itself keeps its name: an end that `ignore_eos` kept is part of the text.
            likely = [
                TokenScore(name, piece, one.logprob) if one.token == token else _named(one)
                for one in (scores.top[i] if scores.top else ())
            ]
            yield TokenScore(name, piece, -nll), likely

    def likely_after(self) -> list[TokenScore]:
        """Return the most likely tokens after the segment that would continue the text."""
        likely = self.scores.top[-1] if self.scores.top else ()
        return [_named(one) for one in likely if not one.ends]


@dataclass(frozen=True, slots=True)
class Scorer:
    """Asks workers for the log-probabilities of one answer, with the `top` most likely tokens at
    each place; counts the cost in `response`."""

    choice: Choice
    response: ResponseAccumulator
    workers: Mapping[WorkerName, Worker]
    top: int = 0

    async def check(self) -> None:
        """Call each worker of the policy once, since only a call shows whether it can score.

        A worker that is down passes: it may not be needed.

        Raises:
            InvalidRequest: a worker cannot score.
        """
        messages = self.choice.messages
        if messages[-1].role == "assistant":
            messages = messages[:-1]
        transcript = Transcript(messages).without_thought()
        for name in sorted(self.choice.plan.policy.called):
            with suppress(WorkerUnavailable):
                await self.verify(name, transcript, Segment(name, ""))

    async def answer(self) -> list[ScoredSegment]:
        """Return the segments of a finished answer, scored; an empty answer has one without text.

        Each is scored by its author. The policy's own text is scored by the large model, or by the
        policy's only model.

        Raises:
            ContextLengthExceeded: the answer fills the context of a worker that needs room for one
                more token to score it.
        """
        assert self.response.completed is not None
        transcript, messages = self.response.completed.transcript, self.choice.messages
        default: WorkerName = "large" if "large" in self.choice.plan.policy.called else "small"
        start = transcript.reply_start
        segments = transcript.answer[start:] or (Segment(default, "", finish="eos"),)
        scored = []
        for number, segment in enumerate(segments, start):
            if number == 0 and self.response.continues and messages[-1].role == "assistant":
                continue  # text of the request
            before = replace(transcript, answer=transcript.answer.first(number), done=False)
            author = default if segment.author == "policy" else segment.author
            if not segment.tokenizer:  # its worker died: the vocabulary of its ids is unknown
                segment = replace(segment, tokens=(), logprobs=())
            scored.append(await self.verify(author, before, segment))
        return scored

    async def verify(
        self, name: WorkerName, transcript: Transcript, segment: Segment, param: str = "logprobs"
    ) -> ScoredSegment:
        """Score a segment after a transcript by the worker `name`.

        Raises:
            InvalidRequest: it cannot score texts; names `param`, the parameter that asks for it.
        """
        choice, began = self.choice, perf_counter()
        call = Call(choice.trace_id, transcript, name, owner=choice.owner, session=choice.affinity)
        try:
            scores = await self.workers[name].verify(call, segment, Sampling(), self.top)
        except Unsupported as error:
            raise InvalidRequest(
                f"{param}: the {name} worker of {choice.plan.name} cannot score texts so: it lacks "
                f"{error}; ask for less, without {param}, or for a policy that does not call it",
                param=param,
                code="unsupported_parameter",
            ) from error
        ms = (perf_counter() - began) * 1000
        self.response.add_scoring(Verify(name, transcript, segment), scores, ms)
        return ScoredSegment(segment, scores)


def shown_tokens(
    scored: Sequence[ScoredSegment], *, begun: bool = False
) -> list[tuple[TokenScore, list[TokenScore]]]:
    """Return the tokens of an answer, without those of white space at both ends, which is not
    shown; `begun`: it continues another text, so white space at its start stays."""
    tokens = [pair for one in scored for pair in one.tokens()]
    start, end = 0, len(tokens)
    while not begun and start < end and tokens[start][0].text.isspace():
        start += 1
    while end > start and tokens[end - 1][0].text.isspace():
        end -= 1
    return tokens[start:end]


def _named(one: LikelyToken) -> TokenScore:
    return TokenScore(token_name(one.text, one.token), one.text, one.logprob)


def token_name(text: str, token: int) -> str:
    """Return a token's text; its id if it adds none (markup, or the beginning of a character)."""
    return text or f"token_id:{token}"
