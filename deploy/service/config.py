"""The application's `args` in a deployment file, as one typed model.

The rest of the file is Ray Serve's. Unknown keys are refused by name, at every level.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from deploy.service.calibration import fingerprint, same_checkpoint
from deploy.service.calibration import read as read_calibration
from deploy.service.overrides import overridden
from deploy.service.store_spec import StoreSpec
from orchestrator.errors import ConfigError
from orchestrator.http.auth import Access, Keys
from orchestrator.http.settings import ServiceLimits
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.state.versions import build
from orchestrator.types import PartialSampling, TokenPrices
from orchestrator.validation import StrictModel, closest, first_error, with_numbers
from orchestrator.worker import SERVER_METHOD
from policies import POLICIES
from policies.judge import Judging
from workers.embedded.checkpoints import (
    EMBEDDED,
    GATE_FILE,
    JUDGE_FILE,
    folder_of,
    place_of,
    resolve,
)
from workers.embedded.remarks import REMARKS
from workers.remote.address import base, checked, trusted
from workers.text.thinking import parse_thinking
from workers.vllm import is_lossy

SERVERS = {"tokenizer", "api_key_env", "ca", "connect_s", "silence_s", "retries"}
"""Settings of a worker that go with a url."""
OURS = {
    "engine", "engine_args", "tensor_parallel", "pipeline_parallel", "device", "replicas",
    "patience_s", "nodes", "gpu", "dtype", "rows", "threads", "speculation", "run_ahead",
}  # fmt: skip
"""Settings of a model that this deployment runs itself."""
VLLM = {"engine_args", "tensor_parallel", "pipeline_parallel"}
"""Settings that go with vLLM's engine."""
VLLM_METHODS = (
    "vanilla", "draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix",
)  # fmt: skip
"""Methods of vLLM's own speculation; all lossless under its standard rejection sampling."""
LOSSY = {"reflective", "relaxed"}
"""Methods of `METHODS` that change the text; `METHODS` cannot be imported without torch."""

RUN_AHEAD = 64
"""Tokens that the small model runs ahead if the file does not say."""
ANSWERING = {"url", "tokenizer", "engine_args", "device", "dtype", "thinking", "max_len"}
"""Fields of a worker that change a checkpoint's answers or log-probabilities."""

Params = Annotated[dict[str, Any], BeforeValidator(with_numbers)]
"""Parameters by name; the model that takes them checks their types."""


class MethodSpec(StrictModel):
    """A token-level method by its name in `METHODS`, with its parameters."""

    method: str
    params: Params = Field(default={})

    @property
    def lossy(self) -> bool:
        return self.method in LOSSY or is_lossy(self.params)

    @property
    def label(self) -> str:
        """The method as users read it, marked if it is lossy."""
        return f"{self.method} (lossy)" if self.lossy else self.method


class Speculation(MethodSpec):
    """What one worker decodes with, and the methods that requests may name instead."""

    method: str = "vanilla"
    also: tuple[MethodSpec, ...] = Field(
        default=(), description="the large worker's: further methods, for arms and requests"
    )

    @model_validator(mode="after")
    def _once(self) -> Speculation:
        names = [one.method for one in self.offered]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"also: {twice} is named twice")
        return self

    @property
    def offered(self) -> tuple[MethodSpec, ...]:
        """Every method that a request may have, the default first."""
        return (MethodSpec(method=self.method, params=self.params), *self.also)


class Replicas(StrictModel):
    """How many replicas: a number, or the fewest and the most of them (`{min: 1, max: 4}`).

    Between the two, their number follows the load. A worker's replica is full when its rows (live
    sequences) are taken, the orchestrator's when it has `limits.concurrent` requests.
    """

    min: int = Field(ge=1)
    max: int = Field(ge=1)
    full_at: float = Field(
        default=0.8, gt=0, le=1, description="share of a replica's room in use; above it, one more"
    )
    up_after_s: float = Field(default=20.0, ge=0, description="seconds above it, before one more")
    down_after_s: float = Field(
        default=600.0, ge=0, description="seconds below it, before one fewer"
    )

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, dict | Replicas):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a number of replicas, or {min: 1, max: 4}")
        return {"min": value, "max": value}

    @model_validator(mode="after")
    def _ordered(self) -> Replicas:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self

    def scaling(self, room: int) -> dict[str, Any]:
        """Return options of `serve.deployment` for replicas that hold `room` calls each."""
        if self.min == self.max:
            return {"num_replicas": self.min}
        return {
            "autoscaling_config": {
                "min_replicas": self.min,
                "max_replicas": self.max,
                "target_ongoing_requests": self.full_at * room,
                "upscale_delay_s": self.up_after_s,
                "downscale_delay_s": self.down_after_s,
            }
        }


ONE = Replicas(min=1, max=1)
Nodes = Annotated[
    dict[str, str], Field(description="labels of the Ray nodes where replicas may run; {}: any")
]


class WorkerSpec(StrictModel):
    """One pool of replicas of one model."""

    model: str | None = Field(
        default=None,
        description="Hugging Face id, a folder, or embedded:NAME; with url, its name on the server",
    )
    url: str | None = Field(
        default=None, description="an OpenAI-compatible server that has the model already"
    )
    tokenizer: str | None = Field(
        default=None, description="with url: as model without one; None: the same name"
    )
    api_key_env: str | None = Field(
        default=None, description="with url: the variable of the environment that holds its key"
    )
    ca: str | None = Field(
        default=None,
        description="with url: a file of certificates (PEM) to trust beside the usual ones, such "
        "as those of a company",
    )
    connect_s: float = Field(default=5.0, gt=0, description="with url: seconds to connect")
    silence_s: float = Field(
        default=60.0, gt=0, description="with url: seconds of silence before a call counts as lost"
    )
    retries: int = Field(default=2, ge=0, le=10, description="with url: tries after the first")
    engine: Literal["auto", "builtin", "vllm"] = Field(
        default="auto", description="what runs the model; auto: vLLM on cuda, our own on cpu"
    )
    engine_args: dict[str, Any] = Field(
        default={}, description="vLLM's: further arguments of its engine, by its own names"
    )
    tensor_parallel: int = Field(
        default=1, ge=1, description="vLLM's: GPUs over which each layer is spread"
    )
    pipeline_parallel: int = Field(
        default=1, ge=1, description="vLLM's: groups of GPUs over which the layers are spread"
    )
    device: Literal["cpu", "cuda"] = "cpu"
    replicas: Replicas = ONE
    patience_s: float = Field(
        default=120.0,  # a replica that is silent is replaced after three checks of 30 s
        gt=0,
        description="seconds that a call waits while no replica answers: until a silent one is "
        "replaced, or as long as one loads",
    )
    nodes: Nodes = Field(default={})
    gpu: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of a GPU and its memory per replica, if device is cuda",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "int4+bfloat16"] = (
        Field(
            default="auto",
            description="of the weights; int8 and int4 for CPUs; auto: float32 there",
        )
    )
    rows: int = Field(default=8, ge=1, description="live sequences per replica")
    run_ahead: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="tokens decoded after a call, while no call is served, for the next call to "
        "continue from; None: 64 by the small model, but 0 if it has all cores of a CPU, and 0 by "
        "the large",
    )
    thinking: str | dict[str, str] = Field(
        default="auto",
        description="how the model marks its thought: auto, none, a family's name, or "
        "{open, close, answer, end}",
    )
    max_len: int | None = Field(
        default=None, ge=16, description="tokens of context; None: the model's, or what fits"
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of torch; None: all cores"
    )
    speculation: Speculation = Speculation()

    @model_validator(mode="after")
    def _one_source(self) -> WorkerSpec:
        if not self.model:
            raise ValueError("model is missing")
        if self.url is None and self.model.startswith(EMBEDDED):
            try:
                resolve(self.model)
            except ConfigError as error:
                raise ValueError(f"model: {error}") from None
        if self.dtype.startswith("int") and self.device != "cpu":
            raise ValueError(
                f"dtype: {self.dtype} is for device cpu, not {self.device}: give bfloat16"
            )
        for name in sorted(self.model_fields_set & (SERVERS if self.url is None else OURS)):
            if self.url is None:
                raise ValueError(f"{name}: goes with url, which is missing")
            raise ValueError(f"{name}: is the server's own if a url is given")
        if self.url is not None:
            try:
                if base(self.url).startswith("https"):
                    trusted(self.ca)
                elif self.ca is not None:
                    raise ConfigError(f"ca: goes with a url of https, not {self.url}")
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _fits_its_engine(self) -> WorkerSpec:
        if not self.runs_vllm:
            for name in sorted(self.model_fields_set & VLLM):
                raise ValueError(f"{name}: goes with engine: vllm, not with our own engine")
            return self
        if self.dtype.startswith("int"):
            raise ValueError(
                f"dtype: {self.dtype} is our own engine's; vLLM has engine_args.quantization"
            )
        method = self.speculation.method
        if method not in VLLM_METHODS:
            raise ValueError(
                f"speculation.method: vLLM has {', '.join(VLLM_METHODS)}, not {method!r}; "
                "methods of our own go with engine: builtin"
            )
        if self.speculation.also:
            raise ValueError("speculation.also: vLLM has one method for all requests")
        if self.gpus > 1 and self.gpu < 1:
            raise ValueError(f"gpu: must be 1 if the model is spread, not {self.gpu}")
        return self

    @property
    def runs_vllm(self) -> bool:
        """Whether vLLM's engine runs the model, in the worker's process."""
        if self.url is not None:
            return False
        return self.engine == "vllm" or (self.engine == "auto" and self.device == "cuda")

    @property
    def lacks_draft_model(self) -> bool:
        """Whether vLLM's draft_model names no model."""
        method = self.speculation
        return self.runs_vllm and method.method == "draft_model" and "model" not in method.params

    @property
    def on_gpu(self) -> bool:
        """Whether replicas of this deployment take a share of a GPU."""
        return self.url is None and self.device == "cuda"

    @property
    def gpus(self) -> int:
        """The number of GPUs, or of processes on CPUs, over which a replica is spread."""
        return self.tensor_parallel * self.pipeline_parallel

    @field_validator("thinking")
    @classmethod
    def _known_family(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        try:
            parse_thinking(value)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("thinking: ")) from None
        return value

    def key(self) -> str | None:
        """Return the server's key; None if it needs none.

        Raises:
            ConfigError: `api_key_env` names a variable that is empty.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"api_key_env: ${self.api_key_env} holds no key; set it where Baton is started"
            )
        return key

    @property
    def source(self) -> str | None:
        """The checkpoint; for a server, that of the tokenizer."""
        return self.model if self.url is None else self.tokenizer or self.model

    def folder(self) -> Path | None:
        """Return the checkpoint's folder; None if it is not on this machine."""
        return folder_of(self.source)

    def checkpoint(self) -> str:
        """Return the checkpoint's identity (`fingerprint`)."""
        return fingerprint(place_of(self.source), str(self.model))

    def answering(self) -> dict[str, Any]:
        """Return the settings, beside the weights, that answers depend on, without defaults."""
        given = self.model_dump(mode="json", include=ANSWERING, exclude_defaults=True)
        if self.device == "cpu" and given.get("dtype") == "float32":  # as auto on a CPU
            del given["dtype"]
        return given | ({"engine": "vllm"} if self.runs_vllm else {})


def _runs_ahead(spec: WorkerSpec) -> WorkerSpec:
    shares_cores = spec.device == "cpu" and spec.threads is None
    if spec.url is not None or spec.run_ahead is not None or shares_cores:
        return spec
    return spec.model_copy(update={"run_ahead": RUN_AHEAD})


class Workers(StrictModel):
    small: Annotated[WorkerSpec, AfterValidator(_runs_ahead)]
    large: WorkerSpec

    @model_validator(mode="after")
    def _chosen_for_the_large(self) -> Workers:
        if self.small.speculation.also:
            raise ValueError("small.speculation.also: requests choose for the large worker alone")
        return self

    @model_validator(mode="after")
    def _drafts_by_the_small(self) -> Workers:
        """Let vLLM's draft_model of the large worker draft with the small model by default."""
        if self.small.lacks_draft_model:
            raise ValueError("small.speculation.params.model: is missing; name a draft model")
        method = self.large.speculation
        if self.large.lacks_draft_model:
            if self.small.url is not None:
                raise ValueError(
                    "large.speculation.params.model: name a draft model; small is a server's"
                )
            method.params["model"] = self.small.model
        return self

    def by_name(self) -> dict[WorkerName, WorkerSpec]:
        return {"small": self.small, "large": self.large}

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded pair, run by this deployment."""
        return all(
            spec.url is None and (spec.model or "").startswith(EMBEDDED)
            for spec in self.by_name().values()
        )

    def remarks(self) -> dict[str, str]:
        """Return what is added to an answer, by the answer."""
        return REMARKS if self.embedded else {}

    def speculation(self) -> dict[str, str]:
        """Return each worker's method of decoding, as users read it."""
        return {
            name: spec.speculation.label if spec.url is None else SERVER_METHOD
            for name, spec in self.by_name().items()
        }

    def answering(self) -> dict[str, dict[str, Any]]:
        """Return each worker's `WorkerSpec.answering`, without workers that have none."""
        found = {name: spec.answering() for name, spec in self.by_name().items()}
        return {name: given for name, given in found.items() if given}

    def methods(self) -> dict[str, str]:
        """Return the methods that a request may name for the large worker, as users read them."""
        if self.large.url is not None or self.large.runs_vllm:
            return {}
        return {one.method: one.label for one in self.large.speculation.offered}


class PolicyChoice(StrictModel):
    """What the model name `baton` means, and each policy's own defaults."""

    default: str = "specreason"
    params: dict[str, Params] = Field(default_factory=dict)
    calibration: Path | None = Field(
        default=None, description="the file that `baton calibrate --out` wrote for this pair"
    )

    @model_validator(mode="after")
    def _known(self) -> PolicyChoice:
        for name in (self.default, *self.params):
            if name not in POLICIES:
                known = closest(name, POLICIES) or f"; there are {', '.join(POLICIES)}"
                raise ValueError(f"no policy {name!r}{known}")
        for name in self.params:
            try:
                self.policy(name)
            except ValidationError as error:
                raise ValueError(f"params.{name}.{explain(error, POLICIES[name])}") from None
        return self

    @model_validator(mode="after")
    def _calibrated(self) -> PolicyChoice:
        """Add a calibration's parameters to those of the deployment file."""
        if self.calibration is not None:
            try:
                measured = read_calibration(self.calibration)
            except ConfigError as error:
                raise ValueError(f"calibration: {error}") from None
            for name, policy in POLICIES.items():
                written, calibrated = self.params.get(name, {}), measured.params(name)
                if twice := sorted(calibrated.keys() & written.keys()):
                    raise ValueError(
                        f"params.{name}.{twice[0]}: the calibration has it too; leave one out"
                    )
                if not calibrated:
                    continue
                self.params[name] = calibrated | written
                try:
                    self.policy(name)
                except ValidationError as error:
                    raise ValueError(f"calibration: {name}: {explain(error, policy)}") from None
        return self

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
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        default="reasoning_content",
        description="the field of the thought; some clients show it twice if they get both",
    )
    strict: bool = Field(
        default=True,
        description="refuse parameters of a request that cannot be honoured; "
        "false: leave them out, with a warning in the answer",
    )
    cors_origins: list[str] = Field(
        default=[], description='origins of web pages that may ask the service, or "*"; none'
    )


class Tracing(StrictModel):
    """Spans of every request, by OpenTelemetry; without this section there are none."""

    exporter: Literal["otlp", "console"] = "otlp"
    endpoint: str | None = Field(
        default=None, description="with otlp: the collector's address for spans over HTTP"
    )
    headers_env: str | None = Field(
        default=None, description="with otlp: the variable with name=value,... sent along"
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="share of requests, unless the client decides"
    )
    service: str = Field(default="baton", min_length=1, description="service.name of the spans")

    @model_validator(mode="after")
    def _an_address(self) -> Tracing:
        if self.exporter == "otlp" and not (self.endpoint or "").startswith(
            ("http://", "https://")
        ):
            raise ValueError("endpoint: expected an http(s) address, as http://HOST:4318/v1/traces")
        if self.endpoint is not None:
            try:
                if not checked(self.endpoint).hostname:
                    raise ConfigError("url: expected a host in it")
            except ConfigError as error:
                raise ValueError(f"endpoint: {str(error).removeprefix('url: ')}") from None
        if self.exporter != "otlp":
            for name in sorted(self.model_fields_set & {"endpoint", "headers_env"}):
                raise ValueError(f"{name}: goes with exporter otlp")
        return self


class Args(StrictModel):
    """The application's `args`: all of Baton's own settings."""

    workers: Workers
    orchestrator: OrchestratorSpec = OrchestratorSpec()
    policy: PolicyChoice = PolicyChoice()
    store: StoreSpec = StoreSpec()
    auth: Auth | Literal["none"] | None = Field(
        default=None, description="keys; none binds loopback only unless `auth: none` is written"
    )
    sampling: PartialSampling = PartialSampling()
    limits: ServiceLimits = ServiceLimits()
    tracing: Tracing | None = None
    prices: TokenPrices | None = Field(
        default=None, description="what tokens cost; without it no policy takes `max_cost`"
    )

    @model_validator(mode="before")
    @classmethod
    def _by_the_environment(cls, given: Any) -> Any:
        return overridden(given, cls.model_fields) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _caps_have_prices(self) -> Args:
        for name, params in self.policy.params.items():
            if self.prices is None and params.get("max_cost") is not None:
                raise ValueError(
                    f"policy.params.{name}.max_cost: needs `prices`, which this file does not name"
                )
        return self

    @field_validator("prices")
    @classmethod
    def _something_costs(cls, prices: TokenPrices | None) -> TokenPrices | None:
        if prices is not None and prices.all_free:
            raise ValueError("expected a price above 0 for small, large or prompt")
        return prices

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
        """Refuse to serve other machines without keys.

        Raises:
            ConfigError: `host` is reachable from elsewhere, and the file has no `auth`.
        """
        if self.auth is None and not _is_loopback(host):
            raise ConfigError(
                f"http_options.host: {host} is open to the network and there are no API keys: "
                "name them under auth, or write `auth: none`"
            )


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return the first error in one line, as `where: what`.

    With the `model` that was validated, the error of an unknown field names known ones.
    """
    _, loc, what = first_error(error.errors(include_url=False), model, "field")
    where = ".".join(map(str, loc))
    return f"{where}: {what}" if where else what


def _keys(variable: str | None, file: Path | None) -> Keys:
    lines: list[str] = []
    if variable is None and file is None:
        return Keys()
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
    if not keys:
        source = f"${variable}" if variable is not None else str(file)
        raise ConfigError(f"auth: {source} holds no key; put at least one there before the start")
    return Keys(sorted(keys))


def _is_loopback(host: str | None) -> bool:
    if host is None or host == "localhost":
        return True  # None: there is no HTTP
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
