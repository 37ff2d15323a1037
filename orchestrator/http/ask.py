"""The values between an API and the step loop: the request, its client, its plan and its answers.

An API file parses a body into one `Ask`. The service adds a `RequestPlan` (which policy
answers) and a place (`admission.Place`). Each answer that the request wants is a `Choice`, which
the API's `Encoder` shows to the client.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from orchestrator.experiments.assignment import Enrollment
from orchestrator.http.api import SESSION_HEADERS, Api
from orchestrator.http.auth import Caller
from orchestrator.http.body import Json
from orchestrator.http.errors import HttpError
from orchestrator.http.tools.offered import ToolUse
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.types import Limits, Message, PartialSampling, Sampling
from orchestrator.worker import Worker

BYTES_PER_TOKEN: Final = 3
"""An estimate, for prompts that no worker has read yet: English has about four, others fewer."""
MAX_SEED: Final = 2**63 - 1
"""A mask: workers take no negative seed."""


@dataclass(frozen=True, slots=True)
class AskedPolicy:
    """The policy that a request asks for; `parameters` override its own.

    `alone` names a parameter of the request, if any, that only a policy of one model can honour.
    """

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    speculation: str | None = None  # the large worker's method; None: its default
    alone: str | None = None
    thought_cap: int | None = None  # tokens


@dataclass(frozen=True, slots=True)
class Labels:
    """Facts about a request that change no answer; the lowest `priority` is first."""

    user: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    warnings: tuple[str, ...] = ()  # parameters that were left out


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a text, of any API. `choices` counts the answers to all conversations, each of
    which gets the same number; `encoder` makes the encoder of one answer."""

    api: Api
    conversations: tuple[tuple[Message, ...], ...]
    policy: AskedPolicy
    sampling: PartialSampling
    limits: Limits
    encoder: Callable[[Choice, ResponseAccumulator], Encoder]
    seed: int | None = None
    choices: int = 1
    tools: ToolUse | None = None
    stream: bool = False
    labels: Labels = field(default_factory=Labels)

    @property
    def answers_each(self) -> int:
        return self.choices // len(self.conversations)

    @property
    def estimated_prompt(self) -> int:
        return sum(map(estimated_tokens, self.conversations))


@dataclass(frozen=True, slots=True)
class Incoming:
    """The HTTP request. The client may choose `request_id`; `created` is in seconds since 1970."""

    request_id: str
    caller: Caller = field(default_factory=Caller)
    headers: Mapping[str, str] = field(default_factory=dict)
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def key(self) -> str | None:
        return self.caller.key

    @property
    def session(self) -> str | None:
        """The client's session: experiments may assign by it, and its requests prefer one replica
        of each worker."""
        return next(filter(None, map(self.headers.get, SESSION_HEADERS)), None)

    def unit(self, name: str | None) -> str | None:
        """Make the name of a user or session unique to the client's key."""
        return None if name is None else f"{self.key or ''}:{name}"

    def owner(self, user: str | None) -> str:
        """Return the owner of the answer for workers, which no client can guess; its first part is
        the key's (`orchestrator.worker.key_of`)."""
        if self.key is None and user is None:
            return ""
        names = (self.key, (self.key, user))
        key, name = (blake2b(repr(one).encode(), digest_size=16).hexdigest() for one in names)
        return f"{key if self.key is not None else ''}.{name}"


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """How a request is answered, by the configuration at its admission."""

    name: str
    policy: Policy
    sampling: Sampling
    version: int = 0  # 0: the deployment file's policy
    overrides: tuple[str, ...] = ()  # the parameters that the request set
    enrollment: Enrollment | None = None
    speculation: str | None = None
    thought_cap: int | None = None  # the request's, in tokens
    decoding: Mapping[str, str] = field(default_factory=dict)  # a label of each worker's method

    @property
    def experiment(self) -> str | None:
        return None if self.enrollment is None else self.enrollment.run.name

    @property
    def arm(self) -> str | None:
        return None if self.enrollment is None else self.enrollment.arm

    @property
    def run(self) -> int | None:
        return None if self.enrollment is None else self.enrollment.run.number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers that a request wants. `affinity` is its session's name for workers."""

    ask: Ask
    incoming: Incoming
    plan: RequestPlan
    affinity: str = ""
    index: int = 0

    @property
    def trace_id(self) -> str:
        """The request's trace id; a further answer's has its index after it."""
        first = self.incoming.trace_id
        return f"{first}-{self.index}" if self.index else first

    @property
    def answer_id(self) -> str:
        """The id that clients see, one for all answers to the request."""
        return self.ask.api.id_prefix + self.incoming.trace_id

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.ask.conversations[self.index // self.ask.answers_each]

    @property
    def sampling(self) -> Sampling:
        """The plan's sampling; each further answer to a prompt takes the next seed."""
        sampling, number = self.plan.sampling, self.index % self.ask.answers_each
        if sampling.seed is None:
            return sampling
        return replace(sampling, seed=(sampling.seed + number) & MAX_SEED)

    @property
    def reads_prompt(self) -> bool:
        """Whether this is the first answer to its prompt: the others find it cached."""
        return self.index % self.ask.answers_each == 0

    @property
    def owner(self) -> str:
        return self.incoming.owner(self.ask.labels.user)

    @property
    def question(self) -> str:
        """The user's last message, or the last message if there is none."""
        asked = [message.content for message in self.messages if message.role == "user"]
        return asked[-1] if asked else self.messages[-1].content

    @property
    def span_attributes(self) -> dict[str, str | int | float]:
        """Attributes of the answer's span, by OpenTelemetry's conventions and a few of Baton's."""
        plan, sampling, count = self.plan, self.sampling, self.ask.choices
        version = f"@{plan.version}" if plan.version else ""
        optional = {
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.choice.count": None if count == 1 else count,
            "gen_ai.request.reasoning.level": self.ask.limits.effort or None,
        }
        return {
            "baton.trace_id": self.trace_id,
            "baton.policy": plan.name,
            "gen_ai.operation.name": self.ask.api.operation,
            "gen_ai.provider.name": "baton",
            "gen_ai.request.model": self.ask.policy.model,
            "gen_ai.response.model": f"{plan.name}{version}",
            "gen_ai.response.id": self.answer_id,
            "gen_ai.request.max_tokens": self.ask.limits.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.stream": self.ask.stream,
            **{name: value for name, value in optional.items() if value is not None},
        }


class Encoder(ABC):
    """Encodes one answer in the form of an API: whole, or as chunks of a stream.

    It knows no connection and no other answers to the same request: `answering` joins and sends
    them. `response` accumulates each event before the encoder gets it.
    """

    def __init__(self, choice: Choice, response: ResponseAccumulator) -> None:
        self.choice, self.response = choice, response

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:  # noqa: B027 (optional)
        """Ask `workers` for extras, such as scores, once the prompt is read. Raise here, before
        anything is sent, if one cannot give them."""

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:  # noqa: B027 (optional)
        """Ask `workers` about the finished answer."""

    @abstractmethod
    def whole(self) -> Json:
        """Return the body of an answer that is not streamed, as if it were the only one."""

    @abstractmethod
    def begin(self) -> bytes:
        """Return the first chunks of a stream: after the prompt is read, or after `headers_s`."""

    @abstractmethod
    def more(self, events: Sequence[Event]) -> bytes:
        """Return the chunks for these events; empty if they show nothing."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the last chunks of the answer."""

    def end(self, responses: Sequence[ResponseAccumulator]) -> bytes:
        """Return the end of a stream, after all answers to the request."""
        return b""

    def failure(self, error: HttpError) -> bytes:
        """Return the end of a stream that failed."""
        return self.choice.ask.api.errors.event(error, self.choice.incoming.request_id)


def estimated_tokens(messages: Sequence[Message]) -> int:
    return sum(
        _bytes(one) // BYTES_PER_TOKEN if one.tokens is None else len(one.tokens)
        for one in messages
    )


def _bytes(message: Message) -> int:
    """Count the bytes of everything in a message that a chat template may show."""
    called = [text for call in message.calls for text in (call.id, call.name, call.arguments)]
    texts = (message.content, message.reasoning, message.call_id, message.name, *called)
    return sum(len(text.encode()) for text in texts)
