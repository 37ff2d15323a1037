"""What a deployment file says of Baton itself: the application's `args`, one typed model.

The rest of the file is Ray Serve's. Unknown keys are refused by name, at every level.
"""

from __future__ import annotations

import ipaddress
import json
import os
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
"""Methods of `METHODS` that change the text; named here, since those cannot be imported
without torch."""


RUN_AHEAD = 64
"""Tokens that the small model runs ahead if the file does not say."""
ANSWERING = {"url", "tokenizer", "engine_args", "device", "dtype", "thinking", "max_len"}
"""Fields of a worker by which one checkpoint gives other answers, or other log-probabilities."""


Params = Annotated[dict[str, Any], BeforeValidator(with_numbers)]
"""Parameters by name, whose types are known elsewhere."""


class MethodSpec(StrictModel):
    """A token-level method by its name in `METHODS`, with its parameters."""

    method: str
    params: Params = Field(default={})

    @property
    def lossy(self) -> bool:
        return self.method in LOSSY or is_lossy(self.params)

    @property
    def label(self) -> str:
        """The method as users read it, marked where it is lossy."""
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

    Between the two, replicas come and go with the load: one of a worker's is full when its rows
    are taken (live sequences, and with them the cache, are what limits), one of the orchestrator's
    when it has `limits.concurrent` requests.
    """

    min: int = Field(ge=1)
    max: int = Field(ge=1)
    full_at: float = Field(
        default=0.8, gt=0, le=1, description="share of a replica's room in use; above it, one more"
    )
    up_after_s: float = Field(default=20.0, ge=0, description="so long above it")
    down_after_s: float = Field(default=600.0, ge=0, description="so long below it")

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
        """Options of `serve.deployment` for replicas that hold `room` calls or requests each."""
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
    connect_s: float = Field(default=5.0, gt=0, description="with url: to come to a connection")
    silence_s: float = Field(
        default=60.0, gt=0, description="with url: silence after which a call counts as lost"
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
        description="share of a GPU and its memory per replica, where device is cuda",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        default="auto", description="of the weights; int8 for CPUs; auto: float32 there"
    )
    rows: int = Field(default=8, ge=1, description="live sequences per replica")
    run_ahead: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="tokens decoded on after a call while no call is served, for the call that "
        "continues from there; None: 64 by the small model, but 0 if "
        "it has all cores of a CPU, and 0 by the large",
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
        if self.dtype == "int8" and self.device != "cpu":
            raise ValueError(f"dtype: int8 is for device cpu, not {self.device}: give bfloat16")
        for name in sorted(self.model_fields_set & (SERVERS if self.url is None else OURS)):
            if self.url is None:
                raise ValueError(f"{name}: goes with url, which is missing")
            raise ValueError(f"{name}: is the server's own where a url is given")
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
        if self.dtype == "int8":
            raise ValueError("dtype: int8 is our own engine's; vLLM has engine_args.quantization")
        method = self.speculation.method
        if method not in VLLM_METHODS:
            raise ValueError(
                f"speculation.method: vLLM has {', '.join(VLLM_METHODS)}, not {method!r}; "
                "methods of our own go with engine: builtin"
            )
        if self.speculation.also:
            raise ValueError("speculation.also: vLLM has one method for all requests")
        if self.gpus > 1 and self.gpu < 1:
            raise ValueError(f"gpu: must be 1 where the model is spread, not {self.gpu}")
        return self

    @property
    def runs_vllm(self) -> bool:
        """Whether vLLM's engine runs the model, in the worker's process."""
        if self.url is not None:
            return False
        return self.engine == "vllm" or (self.engine == "auto" and self.device == "cuda")

    @property
    def drafts_by_nobody(self) -> bool:
        """Whether vLLM's draft_model lacks its model."""
        method = self.speculation
        return self.runs_vllm and method.method == "draft_model" and "model" not in method.params

    @property
    def on_gpu(self) -> bool:
        """Whether replicas of this deployment's own take a share of a GPU."""
        return self.url is None and self.device == "cuda"

    @property
    def gpus(self) -> int:
        """Over how many GPUs, or processes on CPUs, a replica is spread."""
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
        """The key of the server.

        Raises:
            ConfigError: it is promised and not there.
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
        """The checkpoint, of a server's model that of its tokenizer."""
        return self.model if self.url is None else self.tokenizer or self.model

    def folder(self) -> Path | None:
        """Where the checkpoint lies, if that is a folder of this machine."""
        return folder_of(self.source)

    def checkpoint(self) -> str:
        """The identity of the checkpoint; see `fingerprint`."""
        return fingerprint(place_of(self.source), str(self.model))

    def answering(self) -> dict[str, Any]:
        """What answers depend on beside the weights, where it is not the default."""
        said = self.model_dump(mode="json", include=ANSWERING, exclude_defaults=True)
        if self.device == "cpu" and said.get("dtype") == "float32":  # what auto is there
            del said["dtype"]
        return said | ({"engine": "vllm"} if self.runs_vllm else {})


def _runs_ahead(spec: WorkerSpec) -> WorkerSpec:
    shares_cores = spec.device == "cpu" and spec.threads is None  # with what it would run beside
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
        """vLLM's draft_model drafts with the small worker's model where none is named."""
        if self.small.drafts_by_nobody:
            raise ValueError("small.speculation.params.model: is missing; name a draft model")
        method = self.large.speculation
        if self.large.drafts_by_nobody:
            if self.small.url is not None:
                raise ValueError(
                    "large.speculation.params.model: name a draft model; small is a server's"
                )
            method.params["model"] = self.small.model
        return self

    def by_name(self) -> dict[WorkerName, WorkerSpec]:
        return {"small": self.small, "large": self.large}

    def speculation(self) -> dict[str, str]:
        """What each worker decodes with, as users read it."""
        return {
            name: spec.speculation.label if spec.url is None else SERVER_METHOD
            for name, spec in self.by_name().items()
        }

    def answering(self) -> dict[str, dict[str, Any]]:
        """Of each worker what its answers depend on (`WorkerSpec.answering`), where it is said."""
        found = {name: spec.answering() for name, spec in self.by_name().items()}
        return {name: said for name, said in found.items() if said}

    def methods(self) -> dict[str, str]:
        """What a request may ask of the large worker, by name and as users read it."""
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
        """A calibration's parameters beside those that the deployment file says."""
        if self.calibration is not None:
            try:
                measured = read_calibration(self.calibration)
            except ConfigError as error:
                raise ValueError(f"calibration: {error}") from None
            for name, policy in POLICIES.items():
                written = self.params.get(name, {})
                if twice := sorted(measured.params(name).keys() & written.keys()):
                    raise ValueError(
                        f"params.{name}.{twice[0]}: stands in the calibration too; leave one out"
                    )
                if not (calibrated := measured.params(name)):
                    continue
                self.params[name] = calibrated | written
                try:
                    self.policy(name)
                except ValidationError as error:
                    raise ValueError(f"calibration: {name}: {explain(error, policy)}") from None
        return self

    def policy(self, name: str) -> Policy:
        """The policy of that name with the file's parameters."""
        return build(POLICIES, name, self.params.get(name, {}))


class Auth(StrictModel):
    """Where keys come from: variables of the environment (comma-separated) or files (one a line).

    Keys themselves never stand in a deployment file. A file may hold `sha256:` and a key's digest
    in place of the key; one that changes is read again, so keys are rotated without a restart.
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
        """Who may do what, by the keys as they are now; of a kind that is not named there are none.

        Raises:
            ConfigError: a variable or file is missing, holds no key, or one that is no key.
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
        description="what holds the thought; some clients show it twice where they find both",
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
    """Spans of every request, by OpenTelemetry; none are made where this is not written."""

    exporter: Literal["otlp", "console"] = "otlp"
    endpoint: str | None = Field(
        default=None, description="with otlp: the collector's address for spans over HTTP"
    )
    headers_env: str | None = Field(
        default=None, description="with otlp: the variable with name=value,... sent along"
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="share of requests, where the client does not decide"
    )
    service: str = Field(default="baton", min_length=1, description="service.name of the spans")

    @model_validator(mode="after")
    def _an_address(self) -> Tracing:
        if self.exporter == "otlp" and not (self.endpoint or "").startswith(
            ("http://", "https://")
        ):
            raise ValueError(
                "endpoint: an http(s) address is wanted, as http://HOST:4318/v1/traces"
            )
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
    """The application's `args`: everything that is Baton's own."""

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
            raise ValueError("a price above 0 of small, large or prompt is wanted")
        return prices

    @model_validator(mode="after")
    def _of_the_checkpoint(self) -> Args:
        """A checkpoint may say how it judges, and bring the gate for one small model.

        Parameters of the deployment file come before it.
        """
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
        """Who may do what, by the keys as they are now; everything is open where none is named.

        Raises:
            ConfigError: auth names keys, and there are none.
        """
        return self.auth.access() if isinstance(self.auth, Auth) else Access()

    def check_host(self, host: str | None) -> None:
        """Without keys, only this machine may connect.

        Raises:
            ConfigError: `host` is reachable from elsewhere, and `auth` is not written at all.
        """
        if self.auth is None and not _is_loopback(host):
            raise ConfigError(
                f"http_options.host: {host} is open to the network and there are no API keys: "
                "name them under auth, or write `auth: none`"
            )


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first thing that is wrong, in one line: `where: what`.

    With the `model` that was validated, a field that is unknown is told those that are known.
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
        return True  # no HTTP at all, or this machine
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
