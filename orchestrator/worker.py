"""The port of all models: three verbs, nothing else.

Every call carries the whole prefix, so it is idempotent and any replica can serve it. A call is
cancelled by closing its iterator or cancelling its task; the worker frees the row within one
iteration. Errors are those of `orchestrator.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from orchestrator.errors import InvalidRequest
from orchestrator.types import (
    Classification,
    Constraint,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they are made: text that is final (whole characters only) and its ids."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """What every call carries: whose it is, and what it continues.

    `request` identifies the user's request: calls of one request prefer one replica, for its
    cache, and so do those of one `family`, or of one `session` where the user names any. `author`
    is the name under which the worker signs segments. `speculation` names the token-level method by
    which the worker is to generate; None: its default. `owner` is for whom the call is made: cached
    prefixes are shared among the calls of one owner, and no others can tell from an answer, or from
    how soon it comes, what is cached. Only the service names owners. `constraint` is what the whole
    answer must match, of which the transcript holds the beginning.
    """

    request: str
    transcript: Transcript
    author: str = "large"
    speculation: str | None = None
    owner: str = ""
    constraint: Constraint | None = None
    session: str = ""

    @property
    def affinity(self) -> str:
        """What the calls that prefer one replica have in common."""
        return self.session or family(self.request)


def key_of(owner: str) -> str:
    """What the owners under one API key (`Call.owner`) have in common: before workers they are one,
    so that naming many users gives no larger share."""
    return owner.partition(".")[0]


def family(request: str) -> str:
    """What requests with one prompt have in common: the further answers of REQUEST are called
    REQUEST-1, REQUEST-2, ..."""
    return request.partition("-")[0]


SERVER_METHOD = "the server's"
"""What stands for the token-level method of a worker that is a server of somebody else's."""


class Worker(Protocol):
    """One pool of replicas of one model."""

    def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript. Yields deltas (none when `stream` is false), then one
        Generation.

        With `max_tokens` 0 the prompt is only read: that fills the cache and reports its length.

        Raises:
            ContextLengthExceeded: the prefix does not fit.
            InvalidRequest: the worker does not offer the method that the call names; its
                constraint is not valid, or the answer so far does not fit it.
            Unsupported: the worker cannot hold a text to such a constraint.
            Overloaded, WorkerUnavailable: try again later, or elsewhere.
        """
        ...

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation.

        Raises:
            InvalidRequest: a label is not one token of this model's vocabulary.
            Unsupported: the query needs probabilities and the worker knows only the likeliest
                token; or it needs the log-likelihood of tokens of another vocabulary, or of any
                tokens where the worker cannot give that.
        """
        ...

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """The negative log-likelihood of each token of a segment, and k + 1 choices (see
        `Verification`), each under the constraint of the call; and the `top` likeliest tokens at
        the place of each choice.

        For a segment of no tokens that is the one choice that follows the transcript. A worker that
        cannot say what its ids mean as text leaves `pieces` and `options` empty.

        Raises:
            Unsupported: the segment's tokens belong to another vocabulary, or the worker does not
                know that many of the likeliest tokens.
        """
        ...


def check_method(method: str | None, offered: Collection[str], place: str = "speculation") -> None:
    """Refuse a token-level method that a worker does not offer; None is its default.

    Raises:
        InvalidRequest: names `place`, and what there is (nothing, where a server decides).
    """
    if method is not None and method not in offered:
        choices = (
            f"the large worker offers {', '.join(offered)}" if offered else "its server decides"
        )
        raise InvalidRequest(f"{place}: {method[:64]!r} is not offered; {choices}", param=place)


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a worker's iterator at the end of the block, which is how a call is cancelled."""
    try:
        yield stream
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()
