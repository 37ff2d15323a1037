"""The `workers` of a deployment file: two models, each run here or by a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from deploy.service.calibration import fingerprint
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName
from orchestrator.validation import StrictModel, refusing, with_numbers
from orchestrator.worker import SERVER_METHOD
from workers.embedded.checkpoints import EMBEDDED, folder_of, place_of, resolve
from workers.embedded.remarks import REMARKS
from workers.remote.address import base, trusted
from workers.text.thinking import parse_thinking
from workers.vllm import is_lossy

SERVERS = {"tokenizer", "api_key_env", "ca", "connect_s", "silence_s", "retries"}
"""Settings of a worker that go with a url."""
OURS = {
    "engine", "engine_args", "tensor_parallel", "pipeline_parallel", "device", "replicas",
    "patience_s", "nodes", "gpu", "dtype", "rows", "threads", "speculation",
}  # fmt: skip
"""Settings of a model that this deployment runs itself."""
VLLM = {"engine_args", "tensor_parallel", "pipeline_parallel"}
"""Settings that go with vLLM's engine."""
VLLM_METHODS = ("vanilla", "draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix")
"""Methods of vLLM's own speculation; all lossless under its standard rejection sampling."""
LOSSY = {"reflective", "relaxed"}
"""Methods of `METHODS` that change the text; `METHODS` cannot be imported without torch."""
RUN_AHEAD = 64
"""Tokens that the small model runs ahead if the file does not say."""
ANSWERING = {"url", "tokenizer", "engine_args", "device", "dtype", "thinking", "max_len"}
"""Fields of a worker that change a checkpoint's answers or log-probabilities."""

Params = Annotated[dict[str, Any], BeforeValidator(with_numbers)]
"""Parameters by name; the model that takes them checks their types."""
Nodes = dict[str, str]
"""Labels of the Ray nodes where replicas may run; {}: any."""
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


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
    also: tuple[MethodSpec, ...] = ()  # the large worker's, for arms and requests

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

    min: Count
    max: Count
    full_at: float = Field(default=0.8, gt=0, le=1)  # share of a replica's room; above it, one more
    up_after_s: float = Field(default=20.0, ge=0)  # seconds above it, before one more
    down_after_s: float = Field(default=600.0, ge=0)  # seconds below it, before one fewer

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


ONE = Replicas(min=1, max=1)


class WorkerSpec(StrictModel):
    """One pool of replicas of one model, or with `url` an OpenAI-compatible server that has it."""

    model: str | None = None  # Hugging Face id, folder or embedded:NAME; with url, its name there
    url: str | None = None
    tokenizer: str | None = None  # with url: as model without one; None: the same name
    api_key_env: str | None = None  # with url: the variable of the environment that holds its key
    ca: str | None = None  # with url: a file of certificates (PEM) to trust beside the usual ones
    connect_s: Seconds = 5.0  # with url: to connect
    silence_s: Seconds = 60.0  # with url: of silence before a call counts as lost
    retries: int = Field(default=2, ge=0, le=10)  # with url: tries after the first
    engine: Literal["auto", "builtin", "vllm"] = "auto"  # auto: vLLM on cuda, our own on cpu
    engine_args: dict[str, Any] = Field(default={})  # vLLM's own, by its names
    tensor_parallel: Count = 1  # vLLM's: GPUs over which each layer is spread
    pipeline_parallel: Count = 1  # vLLM's: groups of GPUs over which the layers are spread
    device: Literal["cpu", "cuda"] = "cpu"
    replicas: Replicas = ONE
    # How long a call waits while no replica answers: until a silent one is replaced, after three
    # checks of 30 s, or as long as one loads.
    patience_s: Seconds = 120.0
    nodes: Nodes = Field(default={})
    gpu: float = Field(default=1.0, gt=0, le=1)  # on cuda: share of a GPU and its memory
    # The weights'. int8 and int4 are for CPUs, where auto is float32.
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "int4+bfloat16"] = (
        "auto"
    )
    rows: Count = 8  # live sequences per replica
    # Tokens decoded after a call, while no call is served, for the next call to continue from.
    # None: 64 by the small model, but 0 if it is a server, and 0 by the large.
    run_ahead: int | None = Field(default=None, ge=0, le=4096)
    # How the model marks its thought: auto, none, a family's name, or {open, close, answer, end}.
    thinking: str | dict[str, str] = "auto"
    max_len: int | None = Field(default=None, ge=16)  # of context; None: the model's, or what fits
    threads: int | None = Field(default=None, ge=1)  # CPU threads of torch; None: all cores
    speculation: Speculation = Speculation()

    @model_validator(mode="after")
    def _one_source(self) -> WorkerSpec:
        if not self.model:
            raise ValueError("model is missing")
        if self.dtype.startswith("int") and self.device != "cpu":
            raise ValueError(
                f"dtype: {self.dtype} is for device cpu, not {self.device}: give bfloat16"
            )
        for name in sorted(self.model_fields_set & (SERVERS if self.url is None else OURS)):
            if self.url is None:
                raise ValueError(f"{name}: goes with url, which is missing")
            raise ValueError(f"{name}: is the server's own if a url is given")
        if self.url is None:
            if self.model.startswith(EMBEDDED):
                with refusing("model: "):
                    resolve(self.model)
            return self
        with refusing():
            if base(self.url).startswith("https"):
                trusted(self.ca)
            elif self.ca is not None:
                raise ConfigError(f"ca: goes with a url of https, not {self.url}")
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

    @field_validator("thinking")
    @classmethod
    def _known_family(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        with refusing(instead_of="thinking: "):
            parse_thinking(value)
        return value

    @property
    def runs_vllm(self) -> bool:
        """Whether vLLM's engine runs the model, in the worker's process."""
        engine = "vllm" if self.engine == "auto" and self.device == "cuda" else self.engine
        return self.url is None and engine == "vllm"

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
    if spec.url is not None or spec.run_ahead is not None:
        return spec
    return spec.model_copy(update={"run_ahead": RUN_AHEAD})


class Workers(StrictModel):
    small: Annotated[WorkerSpec, AfterValidator(_runs_ahead)]
    large: WorkerSpec

    @model_validator(mode="after")
    def _pair(self) -> Workers:
        """Let vLLM's draft_model of the large worker draft with the small model by default."""
        if self.small.speculation.also:
            raise ValueError("small.speculation.also: requests choose for the large worker alone")
        if self.small.lacks_draft_model:
            raise ValueError("small.speculation.params.model: is missing; name a draft model")
        if self.large.lacks_draft_model:
            if self.small.url is not None:
                raise ValueError(
                    "large.speculation.params.model: name a draft model; small is a server's"
                )
            self.large.speculation.params["model"] = self.small.model
        return self

    def by_name(self) -> dict[WorkerName, WorkerSpec]:
        return {"small": self.small, "large": self.large}

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded pair, run by this deployment."""
        pair = self.by_name().values()
        return all(one.url is None and str(one.model).startswith(EMBEDDED) for one in pair)

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
