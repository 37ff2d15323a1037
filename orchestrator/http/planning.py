"""Which policy answers a request: the deployment's, a published version, or an experiment's arm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from orchestrator.efforts import TemplateEfforts, thought_cap
from orchestrator.errors import ConfigError, InvalidRequest, UnknownPolicy, WorkerUnavailable
from orchestrator.experiments.assignment import AssignmentFacts, Enrollment, enroll
from orchestrator.http.ask import MAX_SEED, Ask, AskedPolicy, Incoming, RequestPlan
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.state.versions import PolicyVersions, PublishedPolicy, build
from orchestrator.state.watcher import ConfigWatcher
from orchestrator.types import GREEDY, Sampling
from orchestrator.validation import invalid_request
from orchestrator.worker import check_method

DEFAULT_MODEL: Final = "baton"
"""The model name of the active version, or of the deployment file's default policy."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What requests may ask for.

    `params` are the deployment file's parameters by policy. `methods` maps the names of the large
    worker's methods to labels for users; `speculation` has the label of each worker's default
    method. A lossy method's label says so.
    """

    policies: Mapping[str, type[Policy]]
    default: str
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    speculation: Mapping[str, str] = field(default_factory=dict)

    def build(self, name: str, values: Mapping[str, Any]) -> Policy:
        """Return a policy with these parameters.

        Raises:
            InvalidRequest: a parameter is unknown or has a wrong value.
        """
        try:
            return build(self.policies, name, values)
        except ValidationError as error:
            raise invalid_request(error, "policy", self.policies[name]) from None


class Planner:
    """Plans requests by the current configuration.

    Args:
        sampling: returns the default sampling.
        efforts: returns the levels of effort that each worker's template has.

    Raises:
        ConfigError: the default or a name in `params` is no policy, or a parameter is wrong.
    """

    def __init__(
        self,
        catalog: Catalog,
        versions: PolicyVersions,
        watcher: ConfigWatcher,
        sampling: Callable[[], Awaitable[Sampling]],
        efforts: Callable[[], Awaitable[Mapping[WorkerName, TemplateEfforts | None]]],
    ) -> None:
        self.catalog, self._versions, self._watcher = catalog, versions, watcher
        self._sampling, self._efforts = sampling, efforts
        for name in (catalog.default, *catalog.params):
            if name not in catalog.policies:
                raise ConfigError(f"no policy is named {name!r}")
        self._defaults = {name: self._build_default(name) for name in catalog.policies}

    @property
    def models(self) -> list[str]:
        """Every policy, and the newest version of each that has a published one."""
        policies, newest = self.catalog.policies, self._watcher.current.latest.items()
        pinned = [f"{name}@{version}" for name, version in newest if name in policies]
        return [DEFAULT_MODEL, *policies, *pinned]

    def default(self, name: str) -> Policy:
        """Return a policy with the deployment file's parameters."""
        return self._defaults[name]

    def context_of(self, model: str, contexts: Mapping[WorkerName, int | None]) -> int | None:
        """Return a model's context in tokens: the smallest known one of its policy's workers."""
        name, active = model.partition("@")[0], self._watcher.current.active
        if name == DEFAULT_MODEL and active is not None:
            policy = active.policy
        else:
            policy = self.default(name if name in self.catalog.policies else self.catalog.default)
        known = [contexts.get(worker) for worker in policy.called]
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
            WorkerUnavailable: the large model's default sampling is needed and not known yet.
        """
        wanted, active = ask.policy, self._watcher.current.active
        check_method(wanted.speculation, self.catalog.methods)
        enrollment = self._enroll(ask, incoming)
        if enrollment is not None:
            built = enrollment.built
            name, version, policy = built.name, built.version, built.policy
            speculation, overrides = built.speculation, tuple[str, ...]()
        else:
            name, version, policy, overrides = await self._requested(wanted, active)
            speculation = wanted.speculation
        if wanted.alone is not None and len(policy.called) != 1:
            raise InvalidRequest(
                f"{wanted.alone}: only a policy of one model can do this, and {name} is none; ask "
                "the model large-only or small-only",
                param=wanted.alone,
                code="unsupported_parameter",
            )
        cap = await self._thought_cap(ask, policy)
        if cap is not None and (policy.budget is None or policy.budget > cap):
            policy = policy.model_copy(update={"budget": cap})
        asked = ask.sampling
        needs_default = asked.temperature != 0 and not asked.is_complete
        default = await self._default_sampling(policy) if needs_default else GREEDY
        seed = None if ask.seed is None else ask.seed & MAX_SEED
        decoding = self.catalog.speculation
        if speculation is not None:
            decoding = {**decoding, "large": self.catalog.methods[speculation]}
        return RequestPlan(
            name,
            policy,
            replace(asked.over(default), seed=seed),
            version,
            overrides,
            enrollment,
            speculation,
            decoding,
        )

    async def _thought_cap(self, ask: Ask, policy: Policy) -> int | None:
        """Return the request's cap on a thought. An effort is one if no model of the policy has
        levels that stand for it."""
        cap, effort = ask.policy.thought_cap, ask.limits.effort
        if not effort:
            return cap
        known = await self._efforts()
        levels = [known.get(worker) for worker in policy.called]
        if any(one is not None and one.nearest(effort) for one in levels):
            return cap
        share = thought_cap(effort, ask.limits.max_tokens)
        return min((one for one in (cap, share) if one is not None), default=None)

    def _enroll(self, ask: Ask, incoming: Incoming) -> Enrollment | None:
        """Return the request's part in an experiment, if any.

        Only a request for one answer by the model `baton` that names no policy or method takes
        part: several answers to one question would be one observation.
        """
        wanted, experiments = ask.policy, self._watcher.current.experiments
        plain = wanted.model == DEFAULT_MODEL and not wanted.parameters
        if plain and wanted.speculation is None and ask.choices == 1:
            if not experiments and incoming.forced_arm is None:
                return None
            facts = AssignmentFacts(
                request=incoming.trace_id,
                key=incoming.key,
                user=incoming.unit(ask.labels.user),
                session=incoming.unit(incoming.session),
                forced=incoming.forced_arm,
            )
            return enroll(experiments, facts)
        if incoming.forced_arm is not None:
            raise InvalidRequest(
                f"x-baton-arm: goes with the model {DEFAULT_MODEL}, one answer (n), and no policy "
                "or speculation of one's own",
                param="x-baton-arm",
            )
        return None

    async def _requested(
        self, wanted: AskedPolicy, active: PublishedPolicy | None
    ) -> tuple[str, int, Policy, tuple[str, ...]]:
        """Return the name, version, policy and overrides that the request asks for."""
        policies, published = self.catalog.policies, None
        if wanted.model == DEFAULT_MODEL:
            name, published = self.catalog.default, active
        elif "@" in wanted.model:
            name, published = wanted.model, await self._pinned(wanted.model)
        elif wanted.model in policies:
            name = wanted.model
        else:
            raise no_model(wanted.model)
        if published is not None:
            name = published.document.policy
        if (named := wanted.parameters.get("name")) is not None and named != name:
            if not isinstance(named, str) or named not in policies:
                raise InvalidRequest("policy.name: no such policy", param="policy.name")
            if wanted.model != DEFAULT_MODEL:
                raise InvalidRequest("policy.name: contradicts model", param="policy.name")
            name, published = named, None
        own = {key: value for key, value in wanted.parameters.items() if key != "name"}
        if published is not None:
            policy, version = published.policy, published.document.version
            params: Mapping[str, Any] = published.document.params
        else:
            policy, version, params = self.default(name), 0, self.catalog.params.get(name, {})
        if own:
            policy = self.catalog.build(name, {**params, **own})
        by_speculation = () if wanted.speculation is None else ("speculation",)
        return name, version, policy, (*sorted(own), *by_speculation)

    async def _pinned(self, model: str) -> PublishedPolicy:
        identity = self._watcher.current.identity
        try:
            return await self._versions.find(model, identity=identity)
        except UnknownPolicy:
            raise no_model(model) from None

    async def _default_sampling(self, policy: Policy) -> Sampling:
        try:
            return await self._sampling()
        except WorkerUnavailable:
            if "large" in policy.called:
                raise
            return GREEDY  # the policy does not call the large model

    def _build_default(self, name: str) -> Policy:
        try:
            return self.catalog.build(name, self.catalog.params.get(name, {}))
        except InvalidRequest as error:
            raise ConfigError(f"the defaults of {name}: {error.message}") from None


def no_model(name: str) -> UnknownPolicy:
    return UnknownPolicy(f"the model {name[:64]!r} does not exist; /v1/models lists those that do")
