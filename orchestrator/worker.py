"""The port of all models: three verbs, nothing else.

Every call carries the whole prefix, so it is idempotent and any replica can serve it. A call is
cancelled by closing its iterator or cancelling its task; the worker frees the row within one
iteration. Errors are those of `orchestrator.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they are made: text that is final (whole characters only) and its ids."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """The common part of every call.

    `request` identifies the user's request: calls of one request prefer one replica, for its
    cache, and so do those of one `family`, or of one `session` if the client names any. `author` is
    the author of the worker's segments. `speculation` names the token-level method; None: the
    worker's default. Cached prefixes are shared only among the calls of one `owner`, so that no
    other client can tell from an answer, or from its latency, what is cached. Only the service
    names owners. The whole answer must match `constraint`; the transcript holds its beginning.
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
        """The key by which calls prefer one replica."""
        return self.session or family(self.request)


def key_of(owner: str) -> str:
    """Return the API key's part of a `Call.owner`. Workers share their time between keys, so that
    naming many users gives no larger share."""
    return owner.partition(".")[0]


def family(request: str) -> str:
    """Return the request of an answer's id: its answers are REQUEST, REQUEST-1, REQUEST-2, ..."""
    return request.partition("-")[0]


SERVER_METHOD = "the server's"
"""The name of the token-level method of a worker that is another project's server."""


class Worker(Protocol):
    """One pool of replicas of one model."""

    def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; yield deltas (if `stream`), then one Generation.

        With `max_tokens` 0 the prompt is only read: that fills the cache and reports its length.

        Raises:
            ContextLengthExceeded: the prefix does not fit.
            InvalidRequest: the worker does not offer the method that the call names; its
                constraint is not valid, or the answer so far does not fit it.
            Unsupported: the worker cannot enforce such a constraint.
            Overloaded, WorkerUnavailable: retry later, or elsewhere.
        """
        ...

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """Return the distribution over the query's labels after its side conversation.

        Raises:
            InvalidRequest: a label is not one token of this model's vocabulary.
            Unsupported: the query needs probabilities and the worker knows only the likeliest
                token; or it needs log-likelihoods that the worker cannot give, at all or of tokens
                of another vocabulary.
        """
        ...

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """Return the negative log-likelihood of each of a segment's k tokens, k + 1 choices (see
        `Verification`), each under the call's constraint, and the `top` likeliest tokens at the
        place of each choice.

        For a segment without tokens it returns the one choice after the transcript. A worker that
        cannot turn its ids into text leaves `pieces` and `options` empty.

        Raises:
            Unsupported: the segment's tokens belong to another vocabulary, or the worker does not
                know that many of the likeliest tokens.
        """
        ...


def check_method(method: str | None, offered: Collection[str], place: str = "speculation") -> None:
    """Refuse a token-level method that a worker does not offer; None is its default.

    Raises:
        InvalidRequest: names `place` and the methods offered (none, if a server decides).
    """
    if method is not None and method not in offered:
        choices = (
            f"the large worker offers {', '.join(offered)}" if offered else "its server decides"
        )
        raise InvalidRequest(f"{place}: {method[:64]!r} is not offered; {choices}", param=place)
