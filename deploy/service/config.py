"""The application's `args` in a deployment file, as one typed model.

The rest of the file is Ray Serve's. Unknown keys are refused by name, at every level.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import AnyHttpUrl, BaseModel, Field, ValidationError, field_validator, model_validator

from deploy.service.calibration import read as read_calibration
from deploy.service.calibration import same_checkpoint
from deploy.service.overrides import overridden
from deploy.service.store_spec import StoreSpec
from deploy.service.worker_spec import ONE, Nodes, Params, Replicas, Workers
from orchestrator.errors import ConfigError
from orchestrator.http.auth import Access, Keys, is_loopback
from orchestrator.http.settings import ReasoningField, ServiceLimits, WhenBusy
from orchestrator.loop.policy import Policy
from orchestrator.state.versions import build
from orchestrator.types import PartialSampling, TokenPrices
from orchestrator.validation import StrictModel, closest, each_error, refusing
from policies import POLICIES
from policies.judge import Judging
from workers.embedded.checkpoints import GATE_FILE, JUDGE_FILE


class PolicyChoice(StrictModel):
    """What the model name `baton` means, and each policy's own defaults."""

    default: str = "specreason"
    when_busy: WhenBusy | None = None
    params: dict[str, Params] = Field(default_factory=dict)
    calibration: Path | None = None  # the file that `baton calibrate --out` wrote for this pair

    @model_validator(mode="after")
    def _known(self) -> PolicyChoice:
        busy = () if self.when_busy is None else (self.when_busy.policy,)
        for name in (self.default, *busy, *self.params):
            if name not in POLICIES:
                known = closest(name, POLICIES) or f"; there are {', '.join(POLICIES)}"
                raise ValueError(f"no policy {name!r}{known}")
        self._check(self.params, "params.{}.")
        return self

    @model_validator(mode="after")
    def _calibrated(self) -> PolicyChoice:
        """Add a calibration's parameters to those of the deployment file."""
        if self.calibration is None:
            return self
        with refusing("calibration: "):
            calibration = read_calibration(self.calibration)
        measured = [name for name in POLICIES if calibration.params(name)]
        for name in measured:
            written, calibrated = self.params.get(name, {}), calibration.params(name)
            if twice := sorted(calibrated.keys() & written.keys()):
                raise ValueError(
                    f"params.{name}.{twice[0]}: the calibration has it too; leave one out"
                )
            self.params[name] = calibrated | written
        self._check(measured, "calibration: {}: ")
        return self

    def _check(self, names: Collection[str], where: str) -> None:
        for name in names:
            try:
                self.policy(name)
            except ValidationError as error:
                what = explain(error, POLICIES[name])
                raise ValueError(f"{where.format(name)}{what}") from None

    def policy(self, name: str) -> Policy:
        """Return the policy of that name, with the file's parameters."""
        return build(POLICIES, name, self.params.get(name, {}))


class Auth(StrictModel):
    """The source of keys: variables of the environment (comma-separated) or files (one a line).

    A deployment file never holds a key. A file of keys may hold `sha256:` and a key's digest in
    place of the key. It is read again when it changes, so keys are rotated without a restart.
    """

    api_keys_env: str | None = None
    api_keys_file: Path | None = None
    admin_key_env: str | None = None
    admin_key_file: Path | None = None
    observer_keys_env: str | None = None
    observer_keys_file: Path | None = None

    @model_validator(mode="after")
    def _some_keys(self) -> Auth:
        if self.api_keys_env is None and self.api_keys_file is None:
            raise ValueError("name api_keys_env or api_keys_file, or write `auth: none`")
        return self

    def access(self) -> Access:
        """Read the keys; a kind that is not named has none.

        Raises:
            ConfigError: a variable or file is missing, holds no key, or holds an invalid one.
        """
        return Access(
            _keys(self.api_keys_env, self.api_keys_file),
            _keys(self.admin_key_env, self.admin_key_file),
            _keys(self.observer_keys_env, self.observer_keys_file),
        )


class OrchestratorSpec(StrictModel):
    """The pool of the HTTP surface, which runs the policies and no model."""

    replicas: Replicas = ONE
    nodes: Nodes = Field(default={})
    reasoning_field: ReasoningField = "reasoning_content"
    strict: bool = True
    cors_origins: list[str] = Field(default=[])


class Tracing(StrictModel):
    """Spans of every request; without this section no spans are made.

    OpenTelemetry's variables of the environment set the rest: headers, sampling, the service's
    name.
    """

    endpoint: AnyHttpUrl  # the collector's address for spans over HTTP


class Args(StrictModel):
    """The application's `args`: all of Baton's own settings."""

    workers: Workers
    orchestrator: OrchestratorSpec = OrchestratorSpec()
    policy: PolicyChoice = PolicyChoice()
    store: StoreSpec = StoreSpec()
    auth: Auth | Literal["none"] | None = None
    """Keys; None binds loopback only."""
    sampling: PartialSampling = PartialSampling()
    limits: ServiceLimits = ServiceLimits()
    tracing: Tracing | None = None
    prices: TokenPrices | None = None
    """What tokens cost; without it no policy takes `max_cost`."""

    @model_validator(mode="before")
    @classmethod
    def _by_the_environment(cls, given: Any) -> Any:
        return overridden(given, cls.model_fields) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _priced(self) -> Args:
        if self.prices is not None and self.prices.all_free:
            raise ValueError("prices: expected a price above 0 for small, large or prompt")
        for name, params in self.policy.params.items():
            if self.prices is None and params.get("max_cost") is not None:
                raise ValueError(
                    f"policy.params.{name}.max_cost: needs `prices`, which this file does not name"
                )
        return self

    @model_validator(mode="after")
    def _of_the_checkpoint(self) -> Args:
        """Add the parameters that the large checkpoint brings: of its judge, and of its gate for
        one small model. Those of the deployment file take precedence."""
        folder = self.workers.large.folder()
        if folder is None:
            return self
        if (folder / JUDGE_FILE).is_file():
            judge = json.loads((folder / JUDGE_FILE).read_text())["policy"]
            for name, policy in POLICIES.items():
                if issubclass(policy, Judging):
                    own = judge.keys() & policy.model_fields.keys()
                    self._complete(name, {key: judge[key] for key in own})
        if (folder / GATE_FILE).is_file():
            learned = read_calibration(folder / GATE_FILE)
            if same_checkpoint(self.workers.small.checkpoint(), learned.pair["small"]):
                for name in learned.policies:
                    self._complete(name, learned.params(name))
        return self

    def _complete(self, policy: str, params: dict[str, Any]) -> None:
        self.policy.params[policy] = params | self.policy.params.get(policy, {})

    @field_validator("store", mode="before")
    @classmethod
    def _url_alone(cls, store: Any) -> Any:
        if isinstance(store, str):
            return {"url": store}
        if not isinstance(store, dict | StoreSpec):
            raise ValueError("must be `memory`, redis://HOST:PORT/DB, or an object with url")
        return store

    def access(self) -> Access:
        """Read the keys; without `auth` everything is open.

        Raises:
            ConfigError: a variable or file that `auth` names has no key.
        """
        return self.auth.access() if isinstance(self.auth, Auth) else Access()

    def check_host(self, host: str | None) -> None:
        """Refuse to serve other machines without keys; without HTTP, `host` is None.

        Raises:
            ConfigError: `host` is reachable from elsewhere, and the file has no `auth`.
        """
        if self.auth is None and host is not None and not is_loopback(host):
            raise ConfigError(
                f"http_options.host: {host} is open to the network and there are no API keys: "
                "name them under auth, or write `auth: none`"
            )


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return the first error in one line, as `where: what`.

    With the `model` that was validated, the error of an unknown field names known ones.
    """
    _, loc, what = next(each_error(error.errors(include_url=False), model, "field"))
    where = ".".join(map(str, loc))
    return f"{where}: {what}" if where else what


def _keys(variable: str | None, file: Path | None) -> Keys:
    lines: list[str] = []
    if variable is not None:
        lines += os.environ.get(variable, "").split(",")
    if file is not None:
        try:
            lines += file.read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise ConfigError(f"auth: {file}: {error.strerror or error}") from None
        except UnicodeError:  # its message would show a byte of a key
            raise ConfigError(f"auth: {file}: not UTF-8 text; write one key a line") from None
    keys = {key.strip() for key in lines if key.strip()}
    source = f"${variable}" if variable is not None else file
    if source is not None and not keys:
        raise ConfigError(f"auth: {source} holds no key; put at least one there before the start")
    return Keys(sorted(keys))
