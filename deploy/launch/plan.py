"""A deployment file for two models, from a look at the machine: what fits where, and why.

Sizes are arithmetic on the checkpoints' configs, so nothing but those is read or downloaded. What
it writes is a file as any other: a start to be edited.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import yaml

from deploy.launch.quantization import weight_bits
from deploy.service.extras import want
from orchestrator.errors import ConfigError
from workers.reporting import first_line

GB = 10**9
ENGINE_BYTES = 3 * GB
"""What an engine takes of a GPU beside weights and cache: CUDA's context, activations, graphs."""
SHARED = 0.95  # of a GPU that two engines may take together
WHOLE = 0.92  # of a GPU that one takes where nothing else is said: vLLM's gpu_memory_utilization
LONGEST = 32_768  # tokens of context that are planned for, where the models have as many,
LEAST = 8_192  # and below which a GPU is called too small
ROWS_GPU, ROWS_CPU = 32, 4
CPU_CONTEXT = 8_192
CPU_USABLE = 0.8  # of this machine's memory
BFLOAT16 = (8, 0)  # compute capability below which a GPU computes in float16
ROLLBACK = 1.5
"""For `bild`: the pretrained pair then answers as well as its large model (deploy/lab/results)."""
NGRAM = {"method": "ngram", "params": {"num_speculative_tokens": 4, "prompt_lookup_max": 4}}
"""A lossless method of vLLM that takes neither training nor memory."""
CHAIN = {"gamma": 12, "threshold": 0.6}
"""The fastest lossless method on a CPU, with the pretrained pair (deploy/lab/results)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its name, its memory in bytes, and its compute capability."""

    name: str
    memory: int
    capability: tuple[int, int] = BFLOAT16


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model could run on. `int8`: whether this CPU computes on weights in 8 bits."""

    gpus: tuple[Gpu, ...]
    cores: int
    memory: int
    int8: bool = True

    @classmethod
    def look(cls) -> Machine:
        """This machine."""
        want("engine", "a plan for two models", "torch", "transformers")
        import torch

        from workers.engine.memory import machine_memory
        from workers.model.packed import can_pack

        gpus = tuple(
            Gpu(properties.name, properties.total_memory, (properties.major, properties.minor))
            for properties in map(
                torch.cuda.get_device_properties, range(torch.cuda.device_count())
            )
        )
        return cls(gpus, len(os.sched_getaffinity(0)), machine_memory(), can_pack())

    def __str__(self) -> str:
        if not self.gpus:
            return f"no GPU, {self.cores} cores, {_gb(self.memory)} of memory"
        names = ", ".join(f"{gpu.name} ({_gb(gpu.memory)})" for gpu in self.gpus)
        return f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)}: {names}"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A checkpoint by its config.

    Args:
        parameters: how many there are.
        token_bytes: of a cached token, in 16 bits.
        context: the longest sequence, in tokens.
        heads, kv_heads: over which vLLM spreads a layer: it divides the heads, and holds those of
            keys and values more than once where there are fewer than GPUs.
        matrices: of the parameters, those of which a quantized checkpoint holds `bits`. The others
            are the embedding's and the head's, but for a few.
        tied: whether these two are one.
        not_ours: why Baton's own engine does not run it; empty where it does.
        vocabulary: equal for equal vocabularies; empty where it is not known.
    """

    name: str
    parameters: int
    token_bytes: int
    context: int
    heads: int
    kv_heads: int
    matrices: int = 0
    bits: float = 16
    not_ours: str = ""
    vocabulary: str = ""
    tied: bool = False

    @classmethod
    def of(cls, name: str) -> ModelSize:
        """Read a folder or a Hugging Face id.

        Raises:
            ConfigError: it has no config that transformers can read.
        """
        import torch
        from transformers import AutoConfig, PreTrainedConfig

        from workers.embedded.checkpoints import resolve
        from workers.engine.loading import load_config
        from workers.engine.memory import parameter_counts, token_bytes

        path = str(resolve(name))
        try:
            written, _ = PreTrainedConfig.get_config_dict(path)
            config = AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config()
            parameters, matrices = parameter_counts(config)
            per_token = token_bytes(config, torch.bfloat16)
        except Exception as error:  # whatever a config class or the hub raises
            raise ConfigError(f"cannot tell the size of {name}: {first_line(error)}") from error
        try:
            load_config(path)
            not_ours = ""
        except ConfigError as error:
            not_ours = str(error)
        return cls(
            name,
            parameters,
            per_token,
            config.max_position_embeddings,
            config.num_attention_heads,
            config.num_key_value_heads,
            matrices,
            weight_bits(written.get("quantization_config") or {}) or 16,
            not_ours,
            _vocabulary(path),
            bool(config.tie_word_embeddings),
        )

    @property
    def weights(self) -> int:
        """Bytes, in 16 bits but for what is quantized."""
        return int(2 * (self.parameters - self.matrices) + self.bits / 8 * self.matrices)

    def packed(self, bits: int) -> int:
        """Bytes in Baton's own engine on a CPU, with `bits` a weight: packed matrices have
        them. The embedding is not packed, and a head that is tied to it is a second copy."""
        if bits == 32:
            return 4 * self.parameters
        ends = self.parameters - self.matrices
        embedding = ends if self.tied else ends // 2
        head = ends if self.tied else ends - embedding
        return 2 * embedding + bits // 8 * (self.matrices + head)

    @property
    def size(self) -> str:
        """The weights, as users read it."""
        return f"{_gb(self.weights)} in {round(self.bits)} bits"

    def has_vocabulary_of(self, other: ModelSize) -> bool:
        """Whether both are known to have the same vocabulary."""
        return self.vocabulary != "" and self.vocabulary == other.vocabulary

    def can_spread(self, gpus: int) -> bool:
        """Whether vLLM can spread its layers over `gpus` GPUs."""
        most, least = max(gpus, self.kv_heads), min(gpus, self.kv_heads)
        return self.heads % gpus == 0 and most % least == 0

    def need(self, gpus: int, tokens: int) -> int:
        """Bytes on each of `gpus` GPUs, with a cache of `tokens`."""
        cache = tokens * self.token_bytes // min(gpus, self.kv_heads)
        return self.weights // gpus + ENGINE_BYTES + cache


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The workers and the policy of a deployment file, and the reasons for them."""

    workers: dict[str, dict[str, Any]]
    policy: dict[str, Any]
    reasons: tuple[str, ...]

    def text(self, port: int = 8000) -> str:
        """The deployment file."""
        data = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port, "keep_alive_timeout_s": 65},
            "logging_config": {"log_level": "WARNING", "enable_access_log": False},
            "applications": [
                {
                    "name": "baton",
                    "route_prefix": "/",
                    "import_path": "deploy.app:build",
                    "args": {
                        "workers": self.workers,
                        "policy": self.policy,
                        "store": "memory",
                    },
                }
            ],
        }
        head = "".join(f"# {reason}\n" for reason in self.reasons)
        return head + yaml.safe_dump(data, sort_keys=False)


def plan(small: ModelSize, large: ModelSize, machine: Machine) -> DeploymentPlan:
    """Where the two models run.

    Raises:
        ConfigError: they do not fit; the message says what is missing.
    """
    if small.parameters > large.parameters:
        raise ConfigError(
            f"--small {small.name} has {_billions(small)} parameters and --large {large.name} "
            f"{_billions(large)}: is it the other way round?"
        )
    choose = _on_gpus if machine.gpus else _on_cpu
    workers, reasons = choose(small, large, machine)
    policy, why = _policy(small, large)
    return DeploymentPlan(
        workers,
        policy,
        (
            f"Written by `baton serve --small {small.name} --large {large.name}` for this machine:",
            f"{machine}.",
            *reasons,
            why,
            "Thresholds of the policies were not measured on this pair: `baton calibrate` does.",
            "Sampling that a request does not name is the large model's generation_config.json's;",
            "`sampling: {temperature: 0.7, top_p: 0.95}` beside `workers` says otherwise.",
        ),
    )


def _policy(small: ModelSize, large: ModelSize) -> tuple[dict[str, Any], str]:
    """What the model name `baton` means, and why."""
    if small.has_vocabulary_of(large):
        return (
            {"default": "bild", "params": {"bild": {"rollback": ROLLBACK}}},
            "One vocabulary: the large model corrects single tokens of the small one (bild).",
        )
    return (
        {"default": "specreason"},
        "No vocabulary in common: the large model judges whole steps (specreason).",
    )


def _on_gpus(
    small: ModelSize, large: ModelSize, machine: Machine
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    context = min(small.context, large.context, LONGEST)
    while True:
        try:
            workers, reasons = _placed(small, large, machine, context)
        except ConfigError:
            if context <= LEAST:
                raise
            context = max(LEAST, context // 2)
        else:
            workers["large"]["speculation"] = NGRAM
            return workers, reasons


def _placed(
    small: ModelSize, large: ModelSize, machine: Machine, context: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    first = machine.gpus[0]
    pair = {"small": small, "large": large}
    shares, tokens = _shared(small, large, first)
    if len(machine.gpus) == 1 or tokens >= 8 * context:
        if tokens < context:
            need = small.need(1, context) + large.need(1, context)
            raise ConfigError(_too_large(need, int(SHARED * first.memory), first, context))
        workers = {
            name: _on_gpu(model, context, machine, shares[name]) for name, model in pair.items()
        }
        reasons = [
            f"Both fit on one {first.name}: weights of {small.size} and {large.size} leave a cache "
            f"of about {tokens:,} tokens each.",
        ]
        return workers, reasons + _remarks(machine, used=1)
    smallest = min(machine.gpus, key=lambda gpu: gpu.memory)
    usable = int(WHOLE * smallest.memory)
    if (need := small.need(1, context)) > usable:
        raise ConfigError(_too_large(need, usable, smallest, context))
    spread = 1
    while large.need(spread, context) > usable:
        if 2 * spread > len(machine.gpus) - 1 or not large.can_spread(2 * spread):
            need = large.weights + context * large.token_bytes
            raise ConfigError(
                f"{large.name} needs {_gb(need)} for its weights and {context:,} tokens, which do "
                f"not fit {spread} of the {len(machine.gpus) - 1} GPUs of {_gb(smallest.memory)} "
                f"beside one for {small.name} (a power of two that divides its heads): name a "
                "quantized checkpoint, or a smaller model"
            )
        spread *= 2
    workers = {name: _on_gpu(model, context, machine) for name, model in pair.items()}
    reasons = [
        f"{small.name} has a separate GPU, {large.name} has {spread}: each needs no less, with "
        f"weights of {small.size} and {large.size}."
    ]
    if spread > 1:
        workers["large"]["tensor_parallel"] = spread
    return workers, reasons + _remarks(machine, used=1 + spread)


def _shared(small: ModelSize, large: ModelSize, gpu: Gpu) -> tuple[dict[str, float], int]:
    """Shares of one GPU for both, in tenths of a percent, and the tokens that each has room for."""
    pair = {"small": small, "large": large}
    free = int(SHARED * gpu.memory) - small.need(1, 0) - large.need(1, 0)
    tokens = free // (small.token_bytes + large.token_bytes)
    shares = {
        name: int(1000 * model.need(1, tokens) / gpu.memory) / 1000 for name, model in pair.items()
    }
    room = (
        int(shares[name] * gpu.memory - model.need(1, 0)) // model.token_bytes
        for name, model in pair.items()
    )
    return shares, min(room)


def _remarks(machine: Machine, used: int) -> list[str]:
    remarks = []
    if idle := len(machine.gpus) - used:
        named = "1 further GPU stays" if idle == 1 else f"{idle} further GPUs stay"
        remarks.append(f"{named} idle: more `replicas` of a worker use them.")
    if _gpu_type(machine) == "float16":
        remarks.append("In float16: these GPUs do not compute in bfloat16, as newer ones do.")
    return remarks


def _gpu_type(machine: Machine) -> str:
    old = any(gpu.capability < BFLOAT16 for gpu in machine.gpus)
    return "float16" if old else "bfloat16"


def _on_gpu(model: ModelSize, context: int, machine: Machine, gpu: float = 1.0) -> dict[str, Any]:
    return {
        "model": model.name,
        "engine": "vllm",
        "device": "cuda",
        "dtype": _gpu_type(machine),
        "gpu": gpu,
        "patience_s": 300,  # it may load for minutes
        "rows": ROWS_GPU,
        "max_len": context,
    }


def _on_cpu(
    small: ModelSize, large: ModelSize, machine: Machine
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    for model in (small, large):
        if model.not_ours:
            raise ConfigError(f"there is no GPU, and on a CPU {model.not_ours}")
    usable, rows = int(CPU_USABLE * machine.memory), ROWS_CPU
    context = min(small.context, large.context, CPU_CONTEXT)
    types = [_cpu_type(model, machine) for model in (small, large)]

    def taken(model: ModelSize, dtype: str, bits: int) -> int:
        cached = 2 * rows * context * model.token_bytes * (1 if dtype == "bfloat16" else 2)
        return model.packed(bits) + cached

    def need() -> int:
        return taken(small, *types[0]) + taken(large, *types[1])

    while need() > usable and (rows > 1 or context > 1024):
        rows, context = (rows // 2, context) if rows > 1 else (rows, context // 2)
    if need() > usable:
        raise ConfigError(
            f"the two need {_gb(need())}, and {_gb(usable)} of this machine's "
            f"{_gb(machine.memory)} are planned with: name smaller models"
        )
    workers = {
        name: {
            "model": model.name,
            "device": "cpu",
            "dtype": dtype,
            "patience_s": 300,
            "rows": rows,
            "max_len": context,
        }
        for name, model, (dtype, _) in zip(("small", "large"), (small, large), types, strict=True)
    }
    reasons = [
        f"Our own engine on {machine.cores} cores, with {types[0][0]} and {types[1][0]} weights: "
        "a pass takes as long as they take to be read.",
        f"They take about {_gb(need())}, with {2 * rows} cached sequences of {context:,} tokens.",
    ]
    draft = taken(small, *types[0])
    if small.has_vocabulary_of(large) and need() + draft <= usable:
        workers["large"]["speculation"] = {
            "method": "chain",
            "params": CHAIN | {"draft": small.name},
        }
        reasons.append(f"The large model decodes with the small one's drafts, {_gb(draft)} more.")
    return workers, reasons


def _cpu_type(model: ModelSize, machine: Machine) -> tuple[str, int]:
    """The type of the weights, and its bits."""
    if model.parameters < 50_000_000:
        return "float32", 32
    return ("int8", 8) if machine.int8 else ("bfloat16", 16)


def _too_large(need: int, usable: int, gpu: Gpu, context: int) -> str:
    return (
        f"weights, engines and {context:,} tokens of cache need {_gb(need)}, and {gpu.name} has "
        f"{_gb(usable)} for them: name a quantized checkpoint, a smaller model, or a server (url)"
    )


def _billions(model: ModelSize) -> str:
    return f"{model.parameters / 1e9:.3g} billion"


def _gb(size: int) -> str:
    return f"{size / GB:.1f} GB"


def _vocabulary(path: str) -> str:
    """A checkpoint's vocabulary, as `Tokenizer.hash`; empty where it cannot be read."""
    from workers.text.tokenizer_files import load_tokenizer

    try:
        return load_tokenizer(path).hash
    except ConfigError:
        return ""
