"""Where models run on this machine, and with how much of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.launch.sizes import BFLOAT16, Gpu, Machine, ModelSize, in_gb, one_vocabulary
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName
from workers.text.gguf_tokenizer import is_gguf

SHARED = 0.95  # of a GPU that two engines may take together
WHOLE = 0.92  # of a GPU that one takes if nothing else is said: vLLM's gpu_memory_utilization
LONGEST = 32_768  # tokens of context that are planned for, if the models have as many,
LEAST = 8_192  # and below which a GPU is called too small
ROWS_GPU, ROWS_CPU = 32, 4
CPU_CONTEXT = 8_192
SHORTEST = 2048  # tokens of a context for which weights get 4 bits instead of 8
CPU_USABLE = 0.8  # of this machine's memory
NGRAM = {"method": "ngram", "params": {"num_speculative_tokens": 4, "prompt_lookup_max": 4}}
"""A lossless method of vLLM that takes neither training nor memory."""
AUTO = {"candidates": [{"method": "chain", "threshold": 0.6}], "lengths": [4, 12]}
"""The fastest lossless method on a CPU for one request, `chain`, and for several at once, which is
plain decoding, both with the pretrained pair (deploy/lab/results)."""


Models = Mapping[WorkerName, ModelSize]
Placed = tuple[dict[str, dict[str, Any]], list[str]]


def place(models: Models, machine: Machine) -> Placed:
    """Return the workers of a deployment file for one or two models, and the reasons.

    Raises:
        ConfigError: they do not fit; the message says what is missing.
    """
    return _on_gpus(models, machine) if machine.gpus else _on_cpu(models, machine)


def _on_gpus(models: Models, machine: Machine) -> Placed:
    for model in models.values():
        if is_gguf(model.name):
            raise ConfigError(
                f"{model.name} is a GGUF file, which is not planned for vLLM: name the model's "
                "Hugging Face id or folder, or hide the GPUs to use the CPU (CUDA_VISIBLE_DEVICES=)"
            )
    context = min(LONGEST, *(model.context for model in models.values()))
    while True:
        try:
            workers, reasons = _placed(models, machine, context)
        except ConfigError:
            if context <= LEAST:
                raise
            context = max(LEAST, context // 2)
        else:
            if "large" in workers:
                workers["large"]["speculation"] = NGRAM
            return workers, reasons


def _placed(models: Models, machine: Machine, context: int) -> Placed:
    if len(models) == 2:
        first = machine.gpus[0]
        shares, tokens = _shared(models, first)
        if len(machine.gpus) == 1 or tokens >= 8 * context:
            if tokens < context:
                need = sum(model.need(1, context) for model in models.values())
                raise ConfigError(_too_large(need, int(SHARED * first.memory), first, context))
            reasons = [
                f"Both fit on one {first.name}: weights of {_weights(models)} leave a cache of "
                f"about {tokens:,} tokens each.",
            ]
            workers = {
                str(name): _on_gpu(model, context, machine, shares[name])
                for name, model in models.items()
            }
            return workers, reasons + _remarks(machine, used=1)
    return _separate(models, machine, context)


def _separate(models: Models, machine: Machine, context: int) -> Placed:
    """A GPU for the small of two models, and as many as it needs for the other, or the only one."""
    *others, (last, large) = models.items()
    smallest = min(machine.gpus, key=lambda gpu: gpu.memory)
    usable, free = int(WHOLE * smallest.memory), len(machine.gpus) - len(others)
    for _, model in others:
        if (need := model.need(1, context)) > usable:
            raise ConfigError(_too_large(need, usable, smallest, context))
    beside = "".join(f"beside one for {model.name} " for _, model in others)
    spread = 1
    while large.need(spread, context) > usable:
        if 2 * spread > free or not large.can_spread(2 * spread):
            need = large.weights + context * large.token_bytes
            raise ConfigError(
                f"{large.name} needs {in_gb(need)} for its weights and {context:,} tokens, which "
                f"do not fit {spread} of the {free} GPUs of {in_gb(smallest.memory)} {beside}"
                "(a power of two that divides its heads): name a quantized checkpoint, or a "
                "smaller model"
            )
        spread *= 2
    workers = {str(name): _on_gpu(model, context, machine) for name, model in models.items()}
    if spread > 1:
        workers[last]["tensor_parallel"] = spread
    each = "".join(f"{model.name} has a separate GPU, " for _, model in others)
    reason = f"{each}{large.name} has {spread}: weights of {_weights(models)}."
    return workers, [reason, *_remarks(machine, used=len(others) + spread)]


def _weights(models: Models) -> str:
    return " and ".join(model.size for model in models.values())


def _shared(models: Models, gpu: Gpu) -> tuple[dict[WorkerName, float], int]:
    """Shares of one GPU for both, in tenths of a percent, and the tokens that each has room for."""
    free = int(SHARED * gpu.memory) - sum(model.need(1, 0) for model in models.values())
    tokens = free // sum(model.token_bytes for model in models.values())
    shares = {
        name: int(1000 * model.need(1, tokens) / gpu.memory) / 1000
        for name, model in models.items()
    }
    room = (
        int(shares[name] * gpu.memory - model.need(1, 0)) // model.token_bytes
        for name, model in models.items()
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


def _on_cpu(models: Models, machine: Machine) -> Placed:
    for model in models.values():
        if model.not_ours:
            raise ConfigError(f"there is no GPU, and on a CPU {model.not_ours}")
    usable = int(CPU_USABLE * machine.memory)
    longest = min(CPU_CONTEXT, *(model.context for model in models.values()))
    plain = {name: _cpu_type(model, machine) for name, model in models.items()}
    fewest = {name: "int4" if dtype == "int8" else dtype for name, dtype in plain.items()}

    def taken(name: WorkerName) -> int:
        dtype, model = types[name], models[name]
        cached = 2 * rows * context * model.token_bytes * (1 if dtype == "bfloat16" else 2)
        return model.packed(dtype) + cached

    def need() -> int:
        return sum(map(taken, models))

    for chosen, shortest in ((plain, SHORTEST), (fewest, 1024)):
        types, rows, context = chosen, ROWS_CPU, longest
        while need() > usable and (rows > 1 or context > shortest):
            rows, context = (rows // 2, context) if rows > 1 else (rows, context // 2)
        if need() <= usable:
            break
    if need() > usable:
        raise ConfigError(
            f"{' and '.join(model.name for model in models.values())} need {in_gb(need())}, and "
            f"{in_gb(usable)} of this machine's {in_gb(machine.memory)} are planned with: name "
            "smaller models"
        )
    workers: dict[str, dict[str, Any]] = {
        name: {
            "model": model.name,
            "device": "cpu",
            "dtype": types[name],
            "patience_s": 300,
            "rows": rows,
            "max_len": context,
        }
        for name, model in models.items()
    }
    reasons = [
        f"Our own engine on {machine.cores} cores, with "
        f"{' and '.join(types.values())} weights: a pass takes as long as "
        "they take to be read.",
        f"Weights and caches take about {in_gb(need())}. Each model decodes up to {rows} sequences "
        f"at once (rows), and keeps {2 * rows} in its cache, each of up to {context:,} tokens "
        "(max_len).",
    ]
    if len(models) == 2:
        workers["small"]["threads"] = half = max(1, machine.cores // 2)
        reasons.append(f"The small model takes {half} of the cores, so that both work at once.")
    if "int4" in types.values():
        reasons.append(
            f"Weights have 4 bits because they do not fit in 8 beside {SHORTEST:,} tokens. While "
            "they load they take 16 bits."
        )
    # Reading twelve drafts takes weights in 4 bits longer than writing some of them.
    elif len(models) == 2 and one_vocabulary(*(one.vocabulary for one in models.values())):
        draft = taken("small")
        if need() + draft <= usable:
            params = AUTO | {"draft": models["small"].name}
            workers["large"]["speculation"] = {"method": "auto", "params": params}
            reasons.append(
                "The large model decodes with the small one's drafts while that is faster, "
                f"{in_gb(draft)} more."
            )
    return workers, reasons


def _cpu_type(model: ModelSize, machine: Machine) -> str:
    """The type of the weights if memory is no concern."""
    if model.parameters < 50_000_000:
        return "float32"
    return "int8" if machine.int8 else "bfloat16"


def _too_large(need: int, usable: int, gpu: Gpu, context: int) -> str:
    return (
        f"weights, engines and {context:,} tokens of cache need {in_gb(need)}, and {gpu.name} has "
        f"{in_gb(usable)} for them: name a quantized checkpoint, a smaller model, or a server (url)"
    )
