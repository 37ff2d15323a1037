"""What the HTTP surface needs to know about the service behind it; all of it is handed in."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import ValidationError

from orchestrator.actions import WorkerName
from orchestrator.auth import Keys
from orchestrator.errors import ConfigError, InvalidRequest, UnknownPolicy
from orchestrator.events import Event
from orchestrator.metrics import ServiceMetrics
from orchestrator.policy import Policy
from orchestrator.refusals import RETRY_AFTER_S, Refused
from orchestrator.schemas import invalid
from orchestrator.solve import solve
from orchestrator.traces import MemoryTraces, TraceStore
from orchestrator.types import Limits, Message, Sampling
from orchestrator.worker import Worker

if TYPE_CHECKING:  # most services make no spans, and load nothing of it
    from orchestrator.spans import Spans

DEFAULT_MODEL = "baton"
"""The model name that means: whatever this deployment's default policy is."""


class Solve(Protocol):
    """`orchestrator.solve.solve`, or what stands in for it."""

    def __call__(
        self,
        policy: Policy,
        messages: Sequence[Message],
        workers: Mapping[WorkerName, Worker],
        *,
        request: str,
        sampling: Sampling,
        limits: Limits,
    ) -> AsyncGenerator[Event, None]: ...


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What one replica takes on. Times in seconds, sizes in bytes, `max_tokens` in tokens."""

    concurrent: int = 64  # requests being answered; one more is refused with 429
    max_tokens: int = 2048  # for a request that names none
    max_tokens_cap: int = 32_768  # the most that a request may name
    deadline_s: float | None = 600.0  # wall time of a request; None: no limit
    body_bytes: int = 1 << 20
    body_s: float = 30.0  # for a body to arrive
    send_s: float = 60.0  # for a client to take what was sent, before it counts as gone
    ping_s: float = 5.0  # silence in a stream after which a comment is sent
    headers_s: float = 20.0  # for the first event, before a stream begins without it


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy that answers a request, and how it was come by."""

    name: str
    policy: Policy
    version: int = 0  # 0: the deployment file's, not a published one
    experiment: str | None = None


async def _nothing_to_check() -> Mapping[str, bool]:
    return {}


@dataclass(slots=True)
class Service:
    """One replica's state and settings.

    `defaults` are parameters per policy from the deployment file. `speculation` says what each
    worker decodes with, a lossy method marked as such. `ready` says of each worker pool
    whether it answers; cheaply, since nobody needs a key to ask. `scrape` gives the Prometheus
    text: this process's unless replaced. `spans`, where there are any, tells requests as spans.
    `signed`: whoever stands before the service adds `x-request-id` to responses, as Serve does.

    Raises:
        ConfigError: `default_policy` or a name in `defaults` is no policy, or a default is wrong.
    """

    policies: Mapping[str, type[Policy]]
    workers: Mapping[WorkerName, Worker]
    default_policy: str
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    speculation: Mapping[str, str] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    traces: TraceStore = field(default_factory=MemoryTraces)
    ready: Callable[[], Awaitable[Mapping[str, bool]]] = _nothing_to_check
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    scrape: Callable[[], Awaitable[bytes]] | None = None
    spans: Spans | None = None
    signed: bool = False
    solve: Solve = solve
    metrics: ServiceMetrics = field(init=False)
    responses: Counter = field(init=False)
    live: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.metrics = ServiceMetrics(self.registry)
        self.responses = Counter(
            "baton_http_responses",
            "HTTP responses begun, by status code, refusals and probes included.",
            ("code",),
            registry=self.registry,
        )
        for name in (self.default_policy, *self.defaults):
            if name not in self.policies:
                raise ConfigError(f"no policy is named {name!r}")
            try:
                self.choose(name, {})
            except InvalidRequest as error:
                raise ConfigError(f"the defaults of {name}: {error.message}") from None

    @property
    def models(self) -> list[str]:
        return [DEFAULT_MODEL, *self.policies]

    def choose(self, model: str, given: Mapping[str, Any], cap: int | None = None) -> Choice:
        """The policy for a request.

        `given` is the request's `policy` object; `cap` bounds the policy's budget from above, in
        tokens.

        Raises:
            UnknownPolicy: no such model.
            InvalidRequest: `given` names another policy, an unknown parameter, or a wrong value.
        """
        if model not in self.models:
            raise UnknownPolicy(f"the model {model[:64]!r} does not exist")
        name = self.default_policy if model == DEFAULT_MODEL else model
        if (asked := given.get("name")) is not None:
            if not isinstance(asked, str) or asked not in self.policies:
                raise InvalidRequest("policy.name: no such policy", param="policy.name")
            if asked != name and model != DEFAULT_MODEL:
                raise InvalidRequest("policy.name: contradicts model", param="policy.name")
            name = asked
        own = {key: value for key, value in given.items() if key != "name"}
        values = {**self.defaults.get(name, {}), **own}
        try:
            # By way of JSON, where strict means what a client would expect: 1 is a float, "1" not.
            policy = self.policies[name].model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            raise invalid(error, "policy") from None
        if cap is not None and (policy.budget is None or policy.budget > cap):
            policy = policy.model_copy(update={"budget": cap})
        return Choice(name, policy)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Room for one request while it is answered.

        Raises:
            Refused: 429, all slots are taken.
        """
        if self.live >= self.limits.concurrent:
            raise Refused(
                429,
                "too many requests are being answered; try again shortly",
                code="rate_limit_exceeded",
                kind="rate_limit_error",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1

    async def exposition(self) -> bytes:
        """The metrics as Prometheus text."""
        return generate_latest(self.registry) if self.scrape is None else await self.scrape()
