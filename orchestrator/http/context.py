"""One request, from its headers to its answer: what each part found out about it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from fastapi import Request

from orchestrator.errors import InvalidRequest
from orchestrator.experiments.assignment import Enrollment
from orchestrator.http.admission import Place
from orchestrator.http.limits import ServiceLimits
from orchestrator.http.schemas import MAX_SEED, GenerationRequest, contradiction
from orchestrator.loop.policy import Policy
from orchestrator.types import GREEDY, Limits, Message, Sampling

BYTES_PER_TOKEN: Final = 3
"""Of a prompt that nobody has read yet: English has about four, other scripts fewer."""


@dataclass(slots=True)
class RequestContext:
    """A request for a text on its way through the service, or one of the answers that it wants.

    The upper half is set when the body has been parsed, the lower one by `Service.admit`, when the
    request gets its place and its policy.
    """

    body: GenerationRequest
    limits: Limits
    headers: Mapping[str, str]
    request_id: str  # of the HTTP request; the client may choose it
    key: str | None = None  # who asks: 8 hex digits of the API key's digest
    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    index: int = 0  # of the answer among those that the request wants
    answer_id: str = field(init=False)  # of all of them, as clients see it: the first one's
    conversations: tuple[tuple[Message, ...], ...] = field(init=False)  # all that is asked
    messages: tuple[Message, ...] = field(init=False)  # that are answered here
    sampling: Sampling = field(init=False)

    policy: Policy = field(init=False)
    policy_name: str = field(init=False)
    version: int = 0  # of the policy; 0: the deployment file's, not a published one
    overrides: tuple[str, ...] = ()  # parameters that the request itself set
    enrollment: Enrollment | None = None  # its part in an experiment
    speculation: str | None = None  # the large worker's method; None: its default
    place: Place | None = None  # once it is admitted
    affinity: str = ""  # likewise: what stands for its session before workers
    decoding: Mapping[str, str] = field(default_factory=dict)  # each worker's, as users read it

    def __post_init__(self) -> None:
        self.conversations = self.body.conversations
        self.messages, self.sampling = self.conversations[0], self.body.sampling(GREEDY)
        self.answer_id = self.body.id_prefix + self.trace_id

    @classmethod
    def of(cls, request: Request, body: GenerationRequest, limits: ServiceLimits) -> RequestContext:
        """The context of a request that passed the middleware.

        Raises:
            InvalidRequest: more tokens or more answers than this service makes.
        """
        most = min(limits.choices, limits.concurrent)
        if body.choices > most:
            raise InvalidRequest(
                f"{body.choices_name}: this service gives at most {most} answers to a "
                f"request, not {body.choices}",
                param=body.choices_name,
                code="invalid_value",
            )
        if body.cap is not None and body.cap > limits.max_tokens_cap:
            raise InvalidRequest(
                f"{body.cap_name}: must be at most {limits.max_tokens_cap} (limits.max_tokens_cap)",
                param=body.cap_name,
            )
        for name, given in (("ignore_eos", body.ignore_eos), ("min_tokens", body.min_tokens)):
            if given and body.constraint is not None:
                raise contradiction(name, "contradicts an answer that must match a form")
        usual = min(limits.max_tokens, limits.max_tokens_cap)
        max_tokens = usual if body.cap is None else body.cap
        if body.min_tokens > max_tokens:
            raise contradiction("min_tokens", f"is {body.min_tokens}, above the cap {max_tokens}")
        return cls(
            body,
            Limits(
                max_tokens,
                limits.deadline_s,
                tuple(body.stop),
                body.thinking,
                body.ignore_eos,
                body.min_tokens,
                complete=limits.complete,
                prices=limits.prices,
                constraint=body.constraint,
            ),
            request.headers,
            request.state.request_id,
            request.state.key,
        )

    def choices(self) -> list[RequestContext]:
        """The request, once for each answer that it wants, those to one prompt together: each has
        a trace id of its own, and where there is a seed, the next one for its prompt."""
        return [self, *map(self._choice, range(1, self.body.choices))]

    def _choice(self, index: int) -> RequestContext:
        choice, seed = copy(self), self.sampling.seed
        choice.index, choice.trace_id = index, f"{self.trace_id}-{index}"
        prompt, number = divmod(index, self.answers_each)
        choice.messages = self.conversations[prompt]
        if seed is not None:
            choice.sampling = replace(self.sampling, seed=(seed + number) & MAX_SEED)
        return choice

    @property
    def answers_each(self) -> int:
        """How many answers each prompt gets."""
        return self.body.choices // len(self.conversations)

    def prompt_read(self, tokens: int) -> None:
        """A worker has read the prompt that is answered here, and counted its tokens: until then
        its place holds an estimate."""
        if self.place is not None and self.index % self.answers_each == 0:
            self.place.prompt += tokens - _estimated(self.messages)

    @property
    def estimated_prompt(self) -> int:
        """About how many tokens its prompts have, before a worker has read them."""
        return sum(map(_estimated, self.conversations))

    @property
    def question(self) -> str:
        """What the user said last; the last message where no user said anything."""
        asked = [message.content for message in self.messages if message.role == "user"]
        return asked[-1] if asked else self.messages[-1].content

    @property
    def owner(self) -> str:
        """For whom the answer is made: a name that nobody but the service knows or chooses.

        That is the key's, and where the request names one, that of a user under this key
        (`orchestrator.worker.key_of`).
        """
        if self.key is None and self.body.user is None:
            return ""
        names = (self.key, (self.key, self.body.user))
        key, user = (blake2b(repr(one).encode(), digest_size=16).hexdigest() for one in names)
        return f"{key if self.key is not None else ''}.{user}"

    def unit(self, name: str | None) -> str | None:
        """What a client names, its user or its session, as one under its key: no other key can
        name the same."""
        return None if name is None else f"{self.key or ''}:{name}"

    @property
    def span_attributes(self) -> dict[str, str | int | float]:
        """What its span says from the start, in OpenTelemetry's words and a few of Baton's."""
        version = f"@{self.version}" if self.version else ""
        sampling, seed, count = self.sampling, self.sampling.seed, self.body.choices
        return {
            "baton.trace_id": self.trace_id,
            "baton.policy": self.policy_name,
            "gen_ai.operation.name": self.body.operation,
            "gen_ai.provider.name": "baton",
            "gen_ai.request.model": self.body.model,
            "gen_ai.response.model": f"{self.policy_name}{version}",
            "gen_ai.response.id": self.answer_id,
            "gen_ai.request.max_tokens": self.limits.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            **({} if seed is None else {"gen_ai.request.seed": seed}),
            **({} if count == 1 else {"gen_ai.request.choice.count": count}),
        }

    @property
    def session(self) -> str | None:
        """The client's session: a unit that experiments may be assigned by, and whose requests
        prefer one replica of each worker (`affinity`)."""
        return self.headers.get("x-session-id") or None

    @property
    def forced_arm(self) -> str | None:
        """The experiment's arm, EXPERIMENT/ARM, that the client wants to test."""
        return self.headers.get("x-baton-arm")

    @property
    def experiment(self) -> str | None:
        return None if self.enrollment is None else self.enrollment.run.name

    @property
    def arm(self) -> str | None:
        return None if self.enrollment is None else self.enrollment.arm

    @property
    def run(self) -> int | None:
        return None if self.enrollment is None else self.enrollment.run.number


def _estimated(messages: Sequence[Message]) -> int:
    return sum(
        _bytes(one) // BYTES_PER_TOKEN if one.tokens is None else len(one.tokens)
        for one in messages
    )


def _bytes(message: Message) -> int:
    """Of everything in a message that a chat template may show."""
    called = [text for call in message.calls for text in (call.id, call.name, call.arguments)]
    texts = (message.content, message.reasoning, message.call_id, message.name, *called)
    return sum(len(text.encode()) for text in texts)
