"""Log-probabilities of an answer's tokens, each under the model that wrote it.

They are asked for once the answer is there: the worker that wrote a segment verifies it, at
temperature 1 and without the constraint that the answer may have been held to. So they are the
model's own, whatever the request's sampling was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter

from orchestrator.errors import InvalidRequest, Unsupported, WorkerUnavailable
from orchestrator.http.context import RequestContext
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import Verify, WorkerName
from orchestrator.types import LikelyToken, Sampling, Segment, Transcript, Verification
from orchestrator.worker import Call, Worker


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability (natural log).

    `text` is what it adds to the text, empty where that is nothing; `name` is the text, or the id
    where there is none.
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
        """Each token, and the likeliest in its place."""
        scores, ids = self.scores, self.segment.tokens
        for i, (piece, nll) in enumerate(zip(scores.pieces, scores.nll, strict=True)):
            choice, logprob = scores.choices[i], scores.logprobs[i]
            # A text that came without ids has none here: equal likelihoods tell the likeliest one.
            known = ids[i] if len(ids) == len(scores.pieces) else None
            token = choice if known is None and logprob == -nll else known
            name = piece if token is None else token_name(piece, token)
            # An end that was passed over (`ignore_eos`) stands in the text: here it has one name.
            likely = [
                TokenScore(name, piece, one.logprob) if one.token == token else _named(one)
                for one in (scores.top[i] if scores.top else ())
            ]
            yield TokenScore(name, piece, -nll), likely

    def behind(self) -> list[TokenScore]:
        """The likeliest tokens behind the segment that would go on with the text."""
        likely = self.scores.top[-1] if self.scores.top else ()
        return [_named(one) for one in likely if not one.ends]


async def check_scoring(
    context: RequestContext,
    response: ResponseAccumulator,
    workers: Mapping[WorkerName, Worker],
    top: int = 0,
) -> None:
    """Refuse a request that wants scores, and the `top` likeliest tokens at each place, which a
    worker of its policy cannot give.

    Only a call shows whether it can; one that is down may not be needed.

    Raises:
        InvalidRequest: it cannot.
    """
    messages = context.messages
    if messages[-1].role == "assistant":
        messages = messages[:-1]
    transcript = Transcript(messages).without_thought()
    for name in sorted(context.policy.called):
        with suppress(WorkerUnavailable):
            await verify(context, response, workers, name, transcript, Segment(name, ""), top)


async def score_answer(
    context: RequestContext,
    response: ResponseAccumulator,
    workers: Mapping[WorkerName, Worker],
    top: int = 0,
) -> list[ScoredSegment]:
    """The segments of a finished answer, scored; the last one also where there is no text.

    Each is scored by its author. What a policy put in was written by no model: the large one scores
    it, or the only one there is.

    Raises:
        ContextLengthExceeded: the answer fills the context of a worker that needs room for one more
            token to score it.
    """
    assert response.completed is not None
    transcript = response.completed.transcript
    default: WorkerName = "large" if "large" in context.policy.called else "small"
    start = transcript.reply_start
    segments = transcript.answer[start:] or (Segment(default, "", finish="eos"),)
    scored = []
    for number, segment in enumerate(segments, start):
        if number == 0 and response.continues and context.messages[-1].role == "assistant":
            continue  # text of the request
        before = replace(transcript, answer=transcript.answer.first(number), done=False)
        author = default if segment.author == "policy" else segment.author
        if not segment.tokenizer:  # cut short by a worker that died: nobody knows whose the ids are
            segment = replace(segment, tokens=(), logprobs=())
        scored.append(await verify(context, response, workers, author, before, segment, top))
    return scored


async def verify(
    context: RequestContext,
    response: ResponseAccumulator,
    workers: Mapping[WorkerName, Worker],
    name: WorkerName,
    transcript: Transcript,
    segment: Segment,
    top: int = 0,
    param: str = "logprobs",
) -> ScoredSegment:
    """A segment behind a transcript, scored by a worker, with the `top` likeliest tokens at each
    place; `param` asks for it. What it cost is counted in `response`.

    Raises:
        InvalidRequest: it cannot score texts.
    """
    call = Call(context.trace_id, transcript, name, owner=context.owner, session=context.affinity)
    began = perf_counter()
    try:
        scores = await workers[name].verify(call, segment, Sampling(), top)
    except Unsupported as error:
        raise InvalidRequest(
            f"{param}: the {name} worker of {context.policy_name} cannot score texts so: it lacks "
            f"{error}; ask for less, without {param}, or for a policy that does not call it",
            param=param,
            code="unsupported_parameter",
        ) from error
    response.add_scoring(Verify(name, transcript, segment), scores, (perf_counter() - began) * 1000)
    return ScoredSegment(segment, scores)


def shown_tokens(
    scored: Sequence[ScoredSegment], *, begun: bool = False
) -> list[tuple[TokenScore, list[TokenScore]]]:
    """The tokens of an answer whose white space at both ends is not shown, without those that are
    nothing else; `begun`: it goes on with another text, whose white space stays."""
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
    """A token's text; its id where it adds none: markup, or the beginning of a character."""
    return text or f"token_id:{token}"
