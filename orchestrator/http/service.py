"""One replica's service: its parts, and how a request gets its place and its policy."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import ValidationError

from orchestrator.errors import ConfigError, InvalidRequest, UnknownPolicy, WorkerUnavailable
from orchestrator.experiments.assignment import AssignmentFacts, enroll
from orchestrator.experiments.experimenter import Experimenter
from orchestrator.experiments.recorder import EventRecorder
from orchestrator.experiments.runs import Runs
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner
from orchestrator.http.admission import Admission
from orchestrator.http.auth import Access
from orchestrator.http.context import RequestContext
from orchestrator.http.errors import HttpError, shutting_down
from orchestrator.http.limits import ServiceLimits
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.state.foreign import ForeignEntries
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import PolicyVersions, PublishedPolicy, build
from orchestrator.state.watcher import ConfigWatcher
from orchestrator.telemetry.metrics import ServiceMetrics
from orchestrator.types import GREEDY, Sampling
from orchestrator.validation import invalid_request
from orchestrator.worker import Worker, check_method

if TYPE_CHECKING:  # most services make no spans, and load nothing of it
    from orchestrator.telemetry.spans import Spans

ReasoningField = Literal["reasoning_content", "reasoning", "both"]
REASONING_FIELDS: Final[dict[ReasoningField, tuple[str, ...]]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}
RECENT_POLICIES = 64
"""Policies with their parameters of which it is kept what requests have cost lately."""
DEFAULT_MODEL = "baton"
"""The model name that means: the active version, or the deployment file's default policy."""


async def _nothing_to_check() -> Mapping[str, bool]:
    return {}


async def _greedy() -> Sampling:
    return GREEDY


async def _nothing_known() -> Mapping[WorkerName, int | None]:
    return {}


@dataclass(slots=True)
class Service:
    """One replica's state and settings.

    `defaults` are parameters per policy from the deployment file. `speculation` says what each
    worker decodes with, a lossy method marked as such; `methods` what a request may name for the
    large one, by name and as users read it. `ready` says of each worker pool whether it answers;
    cheaply, since that needs no key. `contexts` gives each worker's context in tokens, None where
    it is not known. `sampling` gives what requests that say nothing of it get. `reasoning_field`
    names the fields of a message that hold the thought: one, since clients that read both show it
    twice. `cors_origins` are web pages' origins that a browser may let ask the service; "*": all.
    Unless `strict`, parameters of a request that cannot be honoured are left out with a warning.
    `scrape` gives the Prometheus text: this process's unless replaced. `store` is what all replicas
    share; traces stay in it for `trace_ttl_s` seconds. `spans`, where there are any, makes spans of
    requests. `proxy_adds_request_id`: a proxy in front of the service adds `x-request-id` to
    responses, as Serve's does.

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
    contexts: Callable[[], Awaitable[Mapping[WorkerName, int | None]]] = _nothing_known
    sampling: Callable[[], Awaitable[Sampling]] = _greedy
    reasoning_field: ReasoningField = "reasoning_content"
    cors_origins: Sequence[str] = ()
    strict: bool = True
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    scrape: Callable[[], Coroutine[Any, Any, bytes]] | None = None
    spans: Spans | None = None
    proxy_adds_request_id: bool = False
    loopback: bool = False  # only this machine is to ask: pages elsewhere that point here may not
    solve: Callable[..., AsyncGenerator[Event, None]] = solve
    metrics: ServiceMetrics = field(init=False)
    responses: Counter = field(init=False)
    versions: PolicyVersions = field(init=False)
    watcher: ConfigWatcher = field(init=False)
    outbox: Outbox = field(init=False)
    foreign: ForeignEntries = field(init=False)
    shadows: ShadowRunner = field(init=False)
    recorder: EventRecorder = field(init=False)
    experimenter: Experimenter = field(init=False)
    admission: Admission = field(init=False)
    draining: bool = field(init=False, default=False)  # no others are taken on
    cuts: set[Callable[[], object]] = field(init=False, default_factory=set)  # one for each answer
    quiet: asyncio.Event = field(init=False, default_factory=asyncio.Event)  # there are none
    _sessions: set[str] = field(init=False, default_factory=set)  # that are being answered
    _scraping: asyncio.Task[bytes] | None = field(init=False, default=None)
    _default_policies: dict[str, Policy] = field(init=False)  # as the deployment file has them

    def __post_init__(self) -> None:
        self.quiet.set()
        self.admission = Admission(
            self.limits.concurrent, self.limits.wait_s, prompt_tokens=self.limits.prompt_tokens
        )
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
        self.outbox, self.foreign = Outbox(self.store, self.registry), ForeignEntries(self.registry)
        self.shadows = ShadowRunner(self._solve_shadow, self.quiet, self.outbox, self.registry)
        self.recorder = EventRecorder(self.outbox, self.shadows, self.registry)
        self.experimenter = Experimenter(
            self.store,
            runs,
            lambda: self.watcher.current.experiments,
            self.watcher.refresh,
            self.registry,
        )
        for name in (self.default_policy, *self.defaults):
            if name not in self.policies:
                raise ConfigError(f"no policy is named {name!r}")
        self._default_policies = {name: self._build_default(name) for name in self.policies}

    async def start(self) -> None:
        """Begin to follow the store; one that cannot be reached does not delay this for long."""
        await self.watcher.start()
        await self.outbox.start()
        await self.shadows.start()
        await self.experimenter.start()

    async def stop(self) -> None:
        """Write what waits for the store, and close it."""
        await self.experimenter.stop()
        await self.shadows.stop()
        await self.watcher.stop()
        await self.outbox.stop()
        await self.store.aclose()

    @property
    def degraded(self) -> str | None:
        """Why the configuration may be old, outcomes wait, or something that was published is not
        in effect; None where all is in order."""
        if self.store_error is not None:
            return self.store_error
        aside = self.watcher.current.set_aside.items()
        return "; ".join(f"{name} is not in effect: {why}" for name, why in aside) or None

    @property
    def store_error(self) -> str | None:
        """Why the store cannot be read or written to; None where it answers."""
        return self.watcher.error or self.outbox.error

    @property
    def models(self) -> list[str]:
        """Every policy, and the newest version of each that has any."""
        newest = self.watcher.current.latest.items()
        pinned = [f"{name}@{version}" for name, version in newest if name in self.policies]
        return [DEFAULT_MODEL, *self.policies, *pinned]

    @property
    def reasoning_fields(self) -> tuple[str, ...]:
        """The fields of a message that hold the thought."""
        return REASONING_FIELDS[self.reasoning_field]

    def context_of(self, model: str, contexts: Mapping[WorkerName, int | None]) -> int | None:
        """The context of a model in tokens: the smallest of its policy's workers, where known."""
        name, active = model.partition("@")[0], self.watcher.current.active
        if name == DEFAULT_MODEL and active is not None:
            policy = active.policy
        else:
            policy = self.default(name if name in self.policies else self.default_policy)
        known = [contexts.get(worker) for worker in policy.called]
        return min((context for context in known if context is not None), default=None)

    async def knows(self, model: str) -> bool:
        """Whether a request may name this model."""
        if model in self.models:
            return True
        try:
            return "@" in model and await self._pinned(model) is not None
        except UnknownPolicy:
            return False

    @asynccontextmanager
    async def admit(self, context: RequestContext) -> AsyncIterator[None]:
        """A place for a request while it is answered, and the policy that answers it.

        Raises:
            HttpError: 403, its key may not choose an arm; 429, all places are taken; 503, the
                service is about to end.
            UnknownPolicy: no such model.
            InvalidRequest: its `policy` names another policy, an unknown parameter or a wrong
                value; or a speculation method that is not offered.
            StoreError: a pinned version cannot be read.
            WorkerUnavailable: the large model's sampling counts, the policy calls it, and it has
                not told it yet.
        """
        if self.draining:
            raise shutting_down()
        await self._choose_policy(context)  # a request that can never be answered gets no 429
        async with self.place(context):
            yield

    def default(self, name: str) -> Policy:
        """A policy with the deployment file's parameters."""
        return self._default_policies[name]

    async def _choose_policy(self, context: RequestContext) -> None:
        """Set the policy by the configuration of this moment, which the request keeps.

        A request for one answer by the model `baton`, with no policy or method of its own, may take
        part in an experiment.
        """
        body, configuration = context.body, self.watcher.current
        self._check_may_force(context)
        check_method(body.speculation, self.methods)
        plain = body.model == DEFAULT_MODEL and not body.policy and body.speculation is None
        if plain and body.choices == 1:  # several answers to a question are one observation
            if configuration.experiments or context.forced_arm is not None:
                facts = AssignmentFacts(
                    request=context.trace_id,
                    key=context.key,
                    user=context.unit(body.user),
                    session=context.unit(context.session),
                    forced=context.forced_arm,
                )
                context.enrollment = enroll(configuration.experiments, facts)
        elif context.forced_arm is not None:
            raise InvalidRequest(
                f"x-baton-arm: goes with the model {DEFAULT_MODEL}, one answer (n), and no policy "
                "or speculation of one's own",
                param="x-baton-arm",
            )
        if context.enrollment is not None:
            built = context.enrollment.built
            context.policy_name, context.version = built.name, built.version
            context.policy, context.speculation = built.policy, built.speculation
        else:
            await self._apply_body(context, configuration.active)
        if body.alone is not None and len(context.policy.called) != 1:
            raise InvalidRequest(
                f"{body.alone}: only a policy of one model can do this, and {context.policy_name} "
                "is none; ask the model large-only or small-only",
                param=body.alone,
                code="unsupported_parameter",
            )
        if not body.says_all_of_sampling:
            context.sampling = body.sampling(await self._default_sampling(context.policy))
        context.policy = _capped(context.policy, body.thinking_cap(context.limits.max_tokens))
        context.decoding = self.speculation
        if context.speculation is not None:
            large = self.methods[context.speculation]
            context.decoding = {**self.speculation, "large": large}

    async def _default_sampling(self, policy: Policy) -> Sampling:
        try:
            return await self.sampling()
        except WorkerUnavailable:
            if "large" in policy.called:
                raise
            return GREEDY  # the large model, which it does not call, need not be there

    def _check_may_force(self, context: RequestContext) -> None:
        """Arms are for keys that may read experiments: refusing a name would tell of the others."""
        if context.forced_arm is None:
            return
        if not self.access.sees_all(context.headers.get("authorization")):
            raise HttpError(
                403,
                "x-baton-arm: this needs an admin key, or an API key that is an observer's too",
                code="admin_key_required",
            )

    async def _apply_body(self, context: RequestContext, active: PublishedPolicy | None) -> None:
        """Set the policy that the request itself names, with its own parameters."""
        body, published = context.body, None
        if body.model == DEFAULT_MODEL:
            name, published = self.default_policy, active
        elif "@" in body.model:
            name, published = body.model, await self._pinned(body.model)
        elif body.model in self.policies:
            name = body.model
        else:
            raise no_model(body.model)
        if published is not None:
            name = published.document.policy
        if (wanted := body.policy.get("name")) is not None and wanted != name:
            if not isinstance(wanted, str) or wanted not in self.policies:
                raise InvalidRequest("policy.name: no such policy", param="policy.name")
            if body.model != DEFAULT_MODEL:
                raise InvalidRequest("policy.name: contradicts model", param="policy.name")
            name, published = wanted, None
        own = {key: value for key, value in body.policy.items() if key != "name"}
        if published is not None:
            context.policy, context.version = published.policy, published.document.version
            params: Mapping[str, Any] = published.document.params
        else:
            context.policy, params = self.default(name), self.defaults.get(name, {})
        if own:
            context.policy = self._build(name, {**params, **own})
        context.policy_name, context.speculation = name, body.speculation
        by_speculation = () if body.speculation is None else ("speculation",)
        context.overrides = (*sorted(own), *by_speculation)

    async def _pinned(self, model: str) -> PublishedPolicy:
        configuration = self.watcher.current
        try:
            return await self.versions.find(model, identity=configuration.identity)
        except UnknownPolicy:
            raise no_model(model) from None

    def _build(self, name: str, values: Mapping[str, Any]) -> Policy:
        try:
            return build(self.policies, name, values)
        except ValidationError as error:
            raise invalid_request(error, "policy", self.policies[name]) from None

    def _build_default(self, name: str) -> Policy:
        try:
            return self._build(name, self.defaults.get(name, {}))
        except InvalidRequest as error:
            raise ConfigError(f"the defaults of {name}: {error.message}") from None

    @asynccontextmanager
    async def place(self, context: RequestContext) -> AsyncIterator[None]:
        """A place for a request, within the share of its key."""
        body, prompts = context.body, len(context.conversations)
        wanted = context.key or "", body.choices, context.estimated_prompt, body.priority
        async with self.admission.place(*wanted, prompts=prompts) as context.place:
            if self.draining:
                raise shutting_down()
            self.quiet.clear()
            try:
                with self._preferring(context):
                    yield
            finally:
                if self.admission.live == 1:  # this one alone
                    self.quiet.set()

    @contextmanager
    def _preferring(self, context: RequestContext) -> Iterator[None]:
        """Let a request prefer the replica of its session's earlier ones. What comes beside another
        of its session is no next turn: such requests are spread as all are."""
        session = context.unit(context.session)
        if session is None or session in self._sessions:
            yield
            return
        self._sessions.add(session)
        context.affinity = blake2b(session.encode(), digest_size=16).hexdigest()
        try:
            yield
        finally:
            self._sessions.remove(session)

    def drain(self) -> int:
        """Take on no more requests; returns how many are still being answered."""
        self.draining = True
        return self.admission.live

    def cut(self) -> None:
        """End every answer now, each with an error that says why."""
        self.drain()
        for cut in list(self.cuts):
            cut()

    async def metrics_text(self) -> bytes:
        """The metrics as Prometheus text. Those who ask at once are given one and the same."""
        if self.scrape is None:
            return generate_latest(self.registry)
        if self._scraping is None or self._scraping.done():
            # Ray ends what a request began with that request, which it knows by the context.
            self._scraping = asyncio.create_task(self.scrape(), context=Context())
        return await asyncio.shield(self._scraping)

    def _solve_shadow(self, policy: Policy, shadow: ShadowRequest) -> AsyncGenerator[Event, None]:
        asked = replace(shadow.asked, id=f"{shadow.asked.id}-shadow")
        return self.solve(policy, asked, self.workers)


def _capped(policy: Policy, cap: int | None) -> Policy:
    if cap is None or (policy.budget is not None and policy.budget <= cap):
        return policy
    return policy.model_copy(update={"budget": cap})


def no_model(name: str) -> UnknownPolicy:
    """What a request is told that names no model."""
    return UnknownPolicy(f"the model {name[:64]!r} does not exist; /v1/models lists those that do")
