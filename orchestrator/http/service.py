"""What the HTTP surface needs to know about the service behind it; all of it is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import ValidationError

from orchestrator.errors import ConfigError, InvalidRequest, UnknownPolicy
from orchestrator.experiments.experimenter import AssignmentFacts, Enrollment, Experimenter
from orchestrator.experiments.runs import Runs
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner
from orchestrator.http.auth import Access
from orchestrator.http.errors import RETRY_AFTER_S, Refused
from orchestrator.http.schemas import invalid
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import PolicyVersions, PublishedPolicy, build
from orchestrator.state.watcher import ConfigWatcher
from orchestrator.telemetry.metrics import ServiceMetrics
from orchestrator.types import Limits, Message, Sampling
from orchestrator.worker import Worker, check_method

if TYPE_CHECKING:  # most services make no spans, and load nothing of it
    from orchestrator.telemetry.spans import Spans

DEFAULT_MODEL = "baton"
"""The model name that means: the active version, or the deployment file's default policy."""


class Solve(Protocol):
    """`orchestrator.loop.solve.solve`, or what stands in for it."""

    def __call__(
        self,
        policy: Policy,
        messages: Sequence[Message],
        workers: Mapping[WorkerName, Worker],
        *,
        request: str,
        sampling: Sampling,
        limits: Limits,
        speculation: str | None = None,
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
    overrides: tuple[str, ...] = ()  # parameters that the request itself set
    taken: Enrollment | None = None  # its part in an experiment
    speculation: str | None = None  # the large worker's method; None: its default

    @property
    def experiment(self) -> str | None:
        return None if self.taken is None else self.taken.run.name

    @property
    def arm(self) -> str | None:
        return None if self.taken is None else self.taken.arm

    @property
    def run(self) -> int | None:
        return None if self.taken is None else self.taken.run.number


async def _nothing_to_check() -> Mapping[str, bool]:
    return {}


@dataclass(slots=True)
class Service:
    """One replica's state and settings.

    `defaults` are parameters per policy from the deployment file. `speculation` says what each
    worker decodes with, a lossy method marked as such; `methods` what a request may ask of the
    large one, by name and as users read it. `ready` says of each worker pool
    whether it answers; cheaply, since nobody needs a key to ask. `scrape` gives the Prometheus
    text: this process's unless replaced. `store` is what all replicas share; traces stay in it
    for `trace_ttl_s` seconds. `spans`, where there are any, tells requests as spans. `signed`:
    whoever stands before the service adds `x-request-id` to responses, as Serve does.

    Raises:
        ConfigError: `default_policy` or a name in `defaults` is no policy, or a default is wrong.
    """

    policies: Mapping[str, type[Policy]]
    workers: Mapping[WorkerName, Worker]
    default_policy: str
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    speculation: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    store: Store = field(default_factory=MemoryStore)
    trace_ttl_s: float = 24 * 3600.0
    ready: Callable[[], Awaitable[Mapping[str, bool]]] = _nothing_to_check
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    scrape: Callable[[], Awaitable[bytes]] | None = None
    spans: Spans | None = None
    signed: bool = False
    solve: Solve = solve
    metrics: ServiceMetrics = field(init=False)
    responses: Counter = field(init=False)
    versions: PolicyVersions = field(init=False)
    watcher: ConfigWatcher = field(init=False)
    outbox: Outbox = field(init=False)
    experimenter: Experimenter = field(init=False)
    live: int = field(init=False, default=0)
    quiet: asyncio.Event = field(init=False, default_factory=asyncio.Event)  # nobody is answered

    def __post_init__(self) -> None:
        self.quiet.set()
        self.metrics = ServiceMetrics(self.registry)
        self.responses = Counter(
            "baton_http_responses",
            "HTTP responses begun, by status code, refusals and probes included.",
            ("code",),
            registry=self.registry,
        )
        self.versions = PolicyVersions(self.store, self.policies, self.defaults)
        runs = Runs(self.store, self.versions, self.policies, self.defaults, self.methods)
        self.watcher = ConfigWatcher(self.store, self.versions, runs, self.registry)
        self.outbox = Outbox(self.store, self.registry)
        self.experimenter = Experimenter(
            self.store,
            runs,
            self.outbox,
            ShadowRunner(self._repeat, self.quiet, self.outbox, self.registry),
            lambda: self.watcher.current.experiments,
            self.watcher.refresh,
            self.registry,
        )
        for name in (self.default_policy, *self.defaults):
            if name not in self.policies:
                raise ConfigError(f"no policy is named {name!r}")
            try:
                self._build(name, self.defaults.get(name, {}))
            except InvalidRequest as error:
                raise ConfigError(f"the defaults of {name}: {error.message}") from None

    async def start(self) -> None:
        """Begin to follow the store; a store that is away does not hold this up for long."""
        await self.watcher.start()
        await self.outbox.start()
        await self.experimenter.start()

    async def stop(self) -> None:
        """Let what waits for the store go out, and hang up."""
        await self.experimenter.stop()
        await self.watcher.stop()
        await self.outbox.stop()
        await self.store.aclose()

    @property
    def degraded(self) -> str | None:
        """Why answers may go by an old configuration or outcomes wait; None in good order."""
        return self.watcher.error or self.outbox.error

    @property
    def models(self) -> list[str]:
        """Every policy, and the newest version of each that has any."""
        newest = self.watcher.current.latest.items()
        pinned = [f"{name}@{version}" for name, version in newest if name in self.policies]
        return [DEFAULT_MODEL, *self.policies, *pinned]

    async def knows(self, model: str) -> bool:
        """Whether a request may name this model."""
        if model in self.models:
            return True
        try:
            return "@" in model and await self._pinned(model) is not None
        except UnknownPolicy:
            return False

    async def choose(
        self,
        model: str,
        given: Mapping[str, Any],
        cap: int | None = None,
        facts: AssignmentFacts | None = None,
        speculation: str | None = None,
    ) -> Choice:
        """The policy for a request, by the configuration of this moment.

        `given` is the request's `policy` object; `cap` bounds the policy's budget from above, in
        tokens. `speculation` is the large worker's method, where the request names one. With
        `facts` a request for the model `baton` that says nothing of either may take part in an
        experiment.

        Raises:
            UnknownPolicy: no such model.
            InvalidRequest: `given` names another policy, an unknown parameter, or a wrong value;
                or the method cannot be had.
            StoreError: a pinned version cannot be read.
        """
        check_method(speculation, self.methods)
        plain = model == DEFAULT_MODEL and not given and speculation is None
        configuration = self.watcher.current  # looked at once: all of a request goes by it
        if facts is not None and plain:
            taken = self.experimenter.take(configuration.experiments, facts)
            if taken is not None:
                built = taken.built
                return Choice(
                    built.name,
                    _capped(built.policy, cap),
                    built.version,
                    taken=taken,
                    speculation=built.speculation,
                )
        elif facts is not None and facts.forced is not None:
            raise InvalidRequest(
                f"x-baton-arm: goes with the model {DEFAULT_MODEL} and no policy or speculation "
                "of one's own",
                param="x-baton-arm",
            )
        published: PublishedPolicy | None = None
        if model == DEFAULT_MODEL:
            published = configuration.active
        elif "@" in model:
            published = await self._pinned(model)
        elif model not in self.policies:
            raise UnknownPolicy(f"the model {model[:64]!r} does not exist")
        name = self.default_policy if model == DEFAULT_MODEL else model
        if published is not None:
            name = published.document.policy
        if (asked := given.get("name")) is not None:
            if not isinstance(asked, str) or asked not in self.policies:
                raise InvalidRequest("policy.name: no such policy", param="policy.name")
            if asked != name and model != DEFAULT_MODEL:
                raise InvalidRequest("policy.name: contradicts model", param="policy.name")
            if asked != name:
                name, published = asked, None
        own = {key: value for key, value in given.items() if key != "name"}
        if published is None:
            policy, version = self._build(name, {**self.defaults.get(name, {}), **own}), 0
        else:
            policy, version = published.policy, published.document.version
            if own:
                policy = self._build(name, {**published.document.params, **own})
        overrides = (*sorted(own), *(("speculation",) if speculation is not None else ()))
        return Choice(name, _capped(policy, cap), version, overrides, speculation=speculation)

    def decoding(self, choice: Choice) -> Mapping[str, str]:
        """What each worker decodes a request with, as users read it."""
        if choice.speculation is None:
            return self.speculation
        return {**self.speculation, "large": self.methods[choice.speculation]}

    async def _pinned(self, model: str) -> PublishedPolicy:
        configuration = self.watcher.current
        try:
            return await self.versions.find(model, identity=configuration.identity)
        except UnknownPolicy:
            raise UnknownPolicy(f"the model {model[:64]!r} does not exist") from None

    def _build(self, name: str, values: Mapping[str, Any]) -> Policy:
        try:
            return build(self.policies, name, values)
        except ValidationError as error:
            raise invalid(error, "policy") from None

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
        self.quiet.clear()
        try:
            yield
        finally:
            self.live -= 1
            if not self.live:
                self.quiet.set()

    async def exposition(self) -> bytes:
        """The metrics as Prometheus text."""
        return generate_latest(self.registry) if self.scrape is None else await self.scrape()

    def _repeat(self, policy: Policy, repeat: ShadowRequest) -> AsyncGenerator[Event, None]:
        return self.solve(
            policy,
            repeat.messages,
            self.workers,
            request=f"{repeat.trace_id}-shadow",
            sampling=repeat.sampling,
            limits=repeat.limits,
            speculation=repeat.speculation,
        )


def _capped(policy: Policy, cap: int | None) -> Policy:
    if cap is None or (policy.budget is not None and policy.budget <= cap):
        return policy
    return policy.model_copy(update={"budget": cap})
