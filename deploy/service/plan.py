"""A deployment file for two models, from a look at the machine: what fits where, and why.

Sizes are arithmetic on the checkpoints' configs, so nothing but those is read or downloaded. What
it writes is a file as any other: a start to be edited.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.errors import ConfigError

GB = 10**9
ENGINE_BYTES = 3 * GB
"""What an engine takes of a GPU beside weights and cache: CUDA's context, activations, graphs."""
USABLE = 0.95  # of a GPU that engines may take together
LONGEST = 32_768  # tokens of context that are planned for, where the models have as many,
LEAST = 8_192  # and below which a GPU is called too small
ROWS_GPU, ROWS_CPU = 32, 4
CPU_CONTEXT = 8_192
CPU_USABLE = 0.8  # of this machine's memory


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its name, and its memory in bytes."""

    name: str
    memory: int


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
        import torch

        from workers.model.packed import can_pack

        gpus = tuple(
            Gpu(properties.name, properties.total_memory)
            for properties in map(
                torch.cuda.get_device_properties, range(torch.cuda.device_count())
            )
        )
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(gpus, len(os.sched_getaffinity(0)), memory, can_pack())

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
        heads: key/value heads, over which a layer can be spread.
    """

    name: str
    parameters: int
    token_bytes: int
    context: int
    heads: int

    @classmethod
    def of(cls, name: str) -> ModelSize:
        """Of a folder or a Hugging Face id.

        Raises:
            ConfigError: it has no config that transformers can read.
        """
        import torch
        from transformers import AutoConfig

        from workers.embedded.checkpoints import resolve
        from workers.engine.memory import memory_need, token_bytes

        path = str(resolve(name))
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config()
            need = memory_need(config, dtype=torch.bfloat16, slots=0, max_len=0)
        except Exception as error:  # whatever a config class or the hub raises
            raise ConfigError(
                f"cannot tell the size of {name}: {str(error).strip().splitlines()[0]}"
            ) from error
        return cls(
            name,
            need.weights // 2,
            token_bytes(config, torch.bfloat16),
            config.max_position_embeddings,
            config.num_key_value_heads,
        )

    @property
    def weights(self) -> int:
        """Bytes in 16 bits."""
        return 2 * self.parameters


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The workers' part of a deployment file, and the reasons for it."""

    workers: dict[str, dict[str, Any]]
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
                        "policy": {"default": "specreason"},
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
    return DeploymentPlan(
        workers,
        (
            f"Written by `baton serve --small {small.name} --large {large.name}` for this machine:",
            f"{machine}.",
            *reasons,
            "Thresholds of the policies were not measured on this pair: `baton calibrate` does.",
        ),
    )


def _on_gpus(
    small: ModelSize, large: ModelSize, machine: Machine
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    context = min(small.context, large.context, LONGEST)
    while True:
        try:
            return _placed(small, large, machine, context)
        except ConfigError:
            if context <= LEAST:
                raise
            context = max(LEAST, context // 2)


def _placed(
    small: ModelSize, large: ModelSize, machine: Machine, context: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    first = machine.gpus[0]
    usable = int(USABLE * first.memory)
    fixed = [model.weights + ENGINE_BYTES for model in (small, large)]
    cache = usable - sum(fixed)
    per_token = small.token_bytes + large.token_bytes
    if len(machine.gpus) == 1 or cache >= 8 * context * per_token:
        tokens = cache // per_token
        if tokens < context:
            raise ConfigError(_too_large(sum(fixed) + context * per_token, usable, first, context))
        shares = [
            (bytes_ + tokens * model.token_bytes) / first.memory
            for bytes_, model in zip(fixed, (small, large), strict=True)
        ]
        workers = {
            name: _on_gpu(model, context, gpu=int(100 * share) / 100)
            for name, model, share in zip(("small", "large"), (small, large), shares, strict=True)
        }
        reasons = [
            f"Both fit on one {first.name}: {_gb(small.weights)} and {_gb(large.weights)} of "
            f"weights in 16 bits leave a cache of about {tokens:,} tokens each.",
        ]
        return workers, reasons
    smallest = min(machine.gpus, key=lambda gpu: gpu.memory)
    usable = int(USABLE * smallest.memory)
    if fixed[0] + context * small.token_bytes > usable:
        raise ConfigError(
            _too_large(fixed[0] + context * small.token_bytes, usable, smallest, context)
        )
    spread = 1
    while large.weights // spread + ENGINE_BYTES + context * large.token_bytes // spread > usable:
        spread *= 2
        if spread > len(machine.gpus) - 1 or large.heads % spread:
            need = large.weights + context * large.token_bytes
            raise ConfigError(
                f"{large.name} needs {_gb(need)} for its weights and {context:,} tokens, which do "
                f"not fit {len(machine.gpus) - 1} GPUs of {_gb(smallest.memory)} beside one for "
                f"{small.name}: name a quantized checkpoint, or a smaller model"
            )
    workers = {"small": _on_gpu(small, context), "large": _on_gpu(large, context)}
    reasons = [f"{small.name} has a GPU of its own, {large.name} has {spread}: each needs no less."]
    if spread > 1:
        workers["large"]["tensor_parallel"] = spread
    return workers, reasons


def _on_gpu(model: ModelSize, context: int, gpu: float = 1.0) -> dict[str, Any]:
    return {
        "model": model.name,
        "engine": "vllm",
        "device": "cuda",
        "dtype": "bfloat16",
        "gpu": gpu,
        "patience_s": 300,  # it may load for minutes
        "rows": ROWS_GPU,
        "max_len": context,
    }


def _on_cpu(
    small: ModelSize, large: ModelSize, machine: Machine
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    usable, rows = int(CPU_USABLE * machine.memory), ROWS_CPU
    context = min(small.context, large.context, CPU_CONTEXT)
    types = [_cpu_type(model, machine) for model in (small, large)]

    def need() -> int:
        return sum(
            bits // 8 * model.parameters
            + 2 * rows * context * model.token_bytes * max(1, bits // 16)
            for model, (_, bits) in zip((small, large), types, strict=True)
        )

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
