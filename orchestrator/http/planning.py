"""Which policy answers a request: the deployment's, a published version, or an experiment's arm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from orchestrator.efforts import TemplateEfforts, thought_cap
from orchestrator.errors import ConfigError, InvalidRequest, UnknownPolicy
from orchestrator.experiments.assignment import enroll
from orchestrator.experiments.documents import Unit
from orchestrator.http.ask import MAX_SEED, Ask, Incoming, RequestPlan
from orchestrator.http.errors import still_loading
from orchestrator.http.settings import WhenBusy
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.state.versions import PolicyVersions, PublishedPolicy
from orchestrator.state.watcher import ConfigWatcher
from orchestrator.types import GREEDY, PartialSampling, Sampling
from orchestrator.worker import Worker, check_method

LARGE: Final[tuple[WorkerName, ...]] = ("large",)
DEFAULT_MODEL: Final = "baton"
"""The model name of the active version, or of the deployment file's default policy."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What requests may ask for.

    `when_busy` has a policy for times of many answers, which then replaces `default`. `params` are
    the deployment file's parameters by policy. `methods` maps the names of the large worker's
    methods to labels for users; `speculation` has the label of each worker's default method. A
    lossy method's label says so.
    """

    policies: Mapping[str, type[Policy]]
    default: str
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    speculation: Mapping[str, str] = field(default_factory=dict)
    when_busy: WhenBusy | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a worker reports of its model: its context in tokens (None: unknown), the sampling of
    its checkpoint, and the levels of effort that its template has."""

    context: int | None = None
    sampling: Sampling = GREEDY
    efforts: TemplateEfforts | None = None


Facts = Mapping[WorkerName, ModelFacts | None]


async def _no_troubles() -> Mapping[WorkerName, str | None]:
    return {}


async def _no_facts(names: Collection[WorkerName]) -> Facts:
    return dict.fromkeys(names, ModelFacts())


@dataclass(frozen=True, slots=True)
class Pools:
    """The workers, and what is known of them.

    `troubles` returns why each pool or server does not answer, None if it does; cheaply, since
    clients without a key may ask. `facts` returns what the named workers report; None: no answer
    since the start. `sampling` is the default of requests, which the large model's checkpoint
    completes.
    """

    workers: Mapping[WorkerName, Worker]
    troubles: Callable[[], Awaitable[Mapping[WorkerName, str | None]]] = _no_troubles
    facts: Callable[[Collection[WorkerName]], Awaitable[Facts]] = _no_facts
    sampling: PartialSampling = field(default_factory=PartialSampling)


class Planner:
    """Plans requests by the current configuration.

    Args:
        wanted: returns how many answers are being planned, waited for or made.

    Raises:
        ConfigError: the default or a name in `params` is no policy, or a parameter is wrong.
    """

    def __init__(
        self,
        catalog: Catalog,
        pools: Pools,
        versions: PolicyVersions,
        watcher: ConfigWatcher,
        wanted: Callable[[], int],
    ) -> None:
        self.catalog, self._pools = catalog, pools
        self._versions, self._watcher, self._wanted = versions, watcher, wanted
        busy = () if catalog.when_busy is None else (catalog.when_busy.policy,)
        for name in (catalog.default, *busy, *catalog.params):
            if name not in catalog.policies:
                raise ConfigError(f"no policy is named {name!r}")
        try:
            # By name, with the deployment file's parameters.
            self.defaults = {name: self._build(name, {}) for name in catalog.policies}
        except InvalidRequest as error:
            raise ConfigError(f"the deployment file's {error.message}") from None

    @property
    def models(self) -> list[str]:
        """Every policy, and the newest version of each that has a published one."""
        policies, newest = self.catalog.policies, self._watcher.current.latest.items()
        pinned = [f"{name}@{version}" for name, version in newest if name in policies]
        return [DEFAULT_MODEL, *policies, *pinned]

    def context_of(self, model: str, facts: Facts) -> int | None:
        """Return a model's context in tokens: the smallest known one of its policy's workers."""
        name, active = model.partition("@")[0], self._watcher.current.active
        if name == DEFAULT_MODEL and active is not None:
            policy = active.policy
        else:
            policy = self.defaults.get(name) or self.defaults[self.catalog.default]
        known = [fact.context for worker in policy.called if (fact := facts[worker]) is not None]
        return min((context for context in known if context is not None), default=None)

    async def knows(self, model: str) -> bool:
        """Return whether a request may name this model."""
        if model in self.models:
            return True
        try:
            return "@" in model and await self._pinned(model) is not None
        except UnknownPolicy:
            return False

    async def plan(self, ask: Ask, incoming: Incoming) -> RequestPlan:
        """Choose the policy by the current configuration, which the request keeps.

        Raises:
            UnknownPolicy: no such model.
            InvalidRequest: its `policy` names another policy, an unknown parameter or a wrong
                value; its speculation method is not offered; or a parameter needs a policy of one
                model.
            StoreError: a pinned version cannot be read.
            HttpError: 503, a model that the policy calls is still loading.
        """
        check_method(ask.policy.speculation, self.catalog.methods)
        plan = self._enrolled(ask, incoming) or await self._requested(ask)
        policy, alone = plan.policy, ask.policy.alone
        if alone is not None and len(policy.called) != 1:
            raise InvalidRequest(
                f"{alone}: {plan.name} uses two models, and this needs a policy of one; ask the "
                "model large-only or small-only",
                param=alone,
                code="unsupported_parameter",
            )
        own = self._pools.sampling
        open_sampling = ask.sampling.temperature != 0 and not ask.sampling.is_complete
        completing = LARGE if open_sampling and not own.is_complete else ()
        facts = await self._pools.facts(sorted({*policy.called, *completing}))
        if loading := [name for name in sorted(policy.called) if facts[name] is None]:
            raise still_loading(loading)
        cap = _thought_cap(ask, [facts[name] for name in policy.called])
        decoding = self.catalog.speculation
        if plan.speculation is not None:
            decoding = {**decoding, "large": self.catalog.methods[plan.speculation]}
        known = facts["large"] if completing else None
        default = own.over(GREEDY if known is None else known.sampling) if open_sampling else GREEDY
        seed = None if ask.seed is None else ask.seed & MAX_SEED
        sampling = replace(ask.sampling.over(default), seed=seed)
        return replace(
            plan, policy=policy.within(cap), sampling=sampling, decoding=decoding, thought_cap=cap
        )

    def _enrolled(self, ask: Ask, incoming: Incoming) -> RequestPlan | None:
        """Return the plan of a request that takes part in an experiment.

        Only a request for one answer by the model `baton` that names no policy or method takes
        part: several answers to one question would be one observation.
        """
        wanted, experiments = ask.policy, self._watcher.current.experiments
        own = wanted.model != DEFAULT_MODEL or wanted.parameters or wanted.speculation is not None
        if own or ask.choices > 1 or not experiments:
            return None
        units: dict[Unit, str | None] = {
            "request": incoming.trace_id,
            "key": incoming.key,
            "user": incoming.unit(ask.labels.user),
            "session": incoming.unit(incoming.session),
        }
        enrollment = enroll(experiments, units)
        if enrollment is None:
            return None
        arm = enrollment.built
        return RequestPlan(
            arm.name,
            arm.policy,
            GREEDY,
            arm.version,
            enrollment=enrollment,
            speculation=arm.speculation,
        )

    def _default(self, ask: Ask) -> str:
        """Return the deployment file's policy. A request that names a parameter means the one of
        quiet times."""
        busy, others = self.catalog.when_busy, self._wanted() - ask.choices
        if busy is None or others < busy.answers:
            return self.catalog.default
        named = ask.policy.parameters or ask.policy.alone
        return self.catalog.default if named else busy.policy

    async def _requested(self, ask: Ask) -> RequestPlan:
        """Return the plan of a request that is in no experiment."""
        wanted, policies, published = ask.policy, self.catalog.policies, None
        if wanted.model == DEFAULT_MODEL:
            name, published = self._default(ask), self._watcher.current.active
        elif "@" in wanted.model:
            name, published = wanted.model, await self._pinned(wanted.model)
        elif wanted.model in policies:
            name = wanted.model
        else:
            raise no_model(wanted.model)
        if published is not None:
            name = published.document.policy
        own = dict(wanted.parameters)
        named = own.pop("name", None)
        if named is not None and named != name:
            if not isinstance(named, str) or named not in policies:
                raise InvalidRequest("policy.name: no such policy", param="policy.name")
            if wanted.model != DEFAULT_MODEL:
                raise InvalidRequest("policy.name: contradicts model", param="policy.name")
            name, published = named, None
        if published is not None:
            policy, version = published.policy, published.document.version
        else:
            policy, version = self.defaults[name], 0
        if own:
            by_default = wanted.model == DEFAULT_MODEL and named is None
            called = f"{name}, which {DEFAULT_MODEL} stands for" if by_default else name
            policy = self._build(name, own, published, called)
        by_speculation = () if wanted.speculation is None else ("speculation",)
        overrides = (*sorted(own), *by_speculation)
        return RequestPlan(name, policy, GREEDY, version, overrides, speculation=wanted.speculation)

    async def _pinned(self, model: str) -> PublishedPolicy:
        identity = self._watcher.current.identity
        try:
            return await self._versions.find(model, identity=identity)
        except UnknownPolicy:
            raise no_model(model) from None

    def _build(
        self,
        name: str,
        own: Mapping[str, Any],
        published: PublishedPolicy | None = None,
        called: str = "",
    ) -> Policy:
        """Return a policy with a request's `own` parameters over those of a published version or
        the deployment file; errors name it as `called`.

        Raises:
            InvalidRequest: as `PolicyVersions.build`.
        """
        params = (
            self.catalog.params.get(name, {}) if published is None else published.document.params
        )
        return self._versions.build(name, {**params, **own}, "policy", called)


def _thought_cap(ask: Ask, called: Iterable[ModelFacts | None]) -> int | None:
    """Return the request's cap on a thought. An effort is one if no model of the policy has
    levels that stand for it."""
    cap, effort = ask.policy.thought_cap, ask.limits.effort
    if not effort:
        return cap
    for known in called:
        if known is not None and known.efforts is not None and known.efforts.nearest(effort):
            return cap
    share = thought_cap(effort, ask.limits.max_tokens)
    return min((one for one in (cap, share) if one is not None), default=None)


def no_model(name: str) -> UnknownPolicy:
    return UnknownPolicy(f"the model {name[:64]!r} does not exist; /v1/models lists those that do")
