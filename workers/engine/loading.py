"""From the name of a checkpoint to a worker.

Weights come from safetensors or GGUF files, and no code of a checkpoint runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar, Unpack

import torch
from safetensors import SafetensorError

from orchestrator.errors import ConfigError
from workers.control_groups import machine_memory, usable_cores
from workers.embedded.checkpoints import CONFIG, resolve
from workers.engine import gguf_checkpoint
from workers.engine.backend import BuiltinBackend
from workers.engine.engine import Engine
from workers.engine.memory import fitting_len, memory_need, reserve
from workers.engine.weights import Safetensors, fill
from workers.heap import give_back
from workers.model.config import ModelConfig
from workers.model.families import check_family
from workers.model.network import Network
from workers.model.packed import (
    FOUR_BITS,
    Packing,
    can_pack,
    computation,
    computes_in_bfloat16,
)
from workers.model.shapes import parameter_count, shapes
from workers.model.target import Target
from workers.options import DEFAULTS, LoadOptions
from workers.reporting import first_line
from workers.speculation import METHODS, build
from workers.speculation.decode import Decoder
from workers.speculation.drafter import LoadModel
from workers.speculation.method import Method
from workers.text import tokenizer_files
from workers.text.generation_config import FILE as GENERATION
from workers.text.generation_config import sampling_defaults
from workers.text.gguf_tokenizer import is_gguf
from workers.text.thinking import AUTO, ThinkingFormat
from workers.text.tokenizer import Tokenizer
from workers.text.tokenizer_files import checkpoint_folder, read_object
from workers.worker import EngineWorker

log = logging.getLogger(__name__)
T = TypeVar("T")

WHOLE_NUMBERS: Final[tuple[Packing, ...]] = ("int8", *FOUR_BITS)
"""Types of weights that are made here of 16 bits."""
SHORTEST = 4096  # the least default max_len, even if it may not fit
_SMALL_MODEL = 50_000_000  # parameters below which one CPU thread is as fast as several


class BuiltinOptions(LoadOptions, total=False):
    """What the built-in engine may be loaded with.

    Attributes:
        dtype: of the weights; None is float32 on the CPU whatever is stored, else bfloat16.
            `WHOLE_NUMBERS` and half precision are for CPUs what `workers.model.packed` says.
        also: further methods in the form of `speculation`, each once; a call may name any.
        slots: prefixes that are cached (None: twice as many as `rows`).
    """

    dtype: str | torch.dtype | None
    also: Sequence[Mapping[str, Any]]
    slots: int | None


BUILTIN: Final[BuiltinOptions] = {
    **DEFAULTS,
    "dtype": None,
    "also": (),
    "slots": None,
}


def load(model: str | Path, **options: Unpack[BuiltinOptions]) -> EngineWorker[BuiltinBackend]:
    """A worker over a checkpoint, its engine running; `worker.close()` stops it.

    `model` is a folder, a Hugging Face id, a GGUF file, or `embedded:NAME`. Without `max_len` the
    context is the checkpoint's if it fits a sixteenth of the machine's memory, or half of what
    weights leave of a GPU; else what fits, at least 4,096.

    Raises:
        ConfigError: the checkpoint or a parameter cannot be used; the message says why.
    """
    chosen: BuiltinOptions = {**BUILTIN, **options}
    rows, slots, threads = chosen["rows"], chosen["slots"], chosen["threads"]
    if rows < 1 or (slots is not None and slots < rows):
        raise ConfigError(f"rows must be at least 1, and slots at least rows: {rows=}, {slots=}")
    loaded, decoder = _in_passing_thread(partial(_read, model, chosen))
    if threads is None and chosen["device"] == "cpu":
        threads = 1 if loaded.is_small else min(torch.get_num_threads(), usable_cores())
    engine = Engine(
        decoder,
        rows=rows,
        queue=chosen["queue"],
        threads=threads,
        run_ahead=chosen["run_ahead"],
    )
    sampling = sampling_defaults(resolve(model))
    backend = BuiltinBackend(engine, loaded.tokenizer, loaded.stop_token_ids, sampling)
    return EngineWorker(backend)


def _in_passing_thread(make: Callable[[], T]) -> T:
    """Call `make` in a thread that ends before this returns, so that torch's threads under it end.

    If a process has more threads of GNU's OpenMP than cores, all of them sleep at once whenever
    they wait, whatever `GOMP_SPINCOUNT` says. With those of a loading thread beside the engine's,
    a kernel that takes 8 us took 50, and a pass over eight tokens 145 ms instead of 122 (1.5B in 8
    bits, two cores).
    """
    made = Future[T]()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    thread = Thread(target=run, name="loading", daemon=True)  # Ctrl-C need not wait for it
    thread.start()
    thread.join()
    return made.result()


def _read(model: str | Path, chosen: BuiltinOptions) -> tuple[LoadedTarget, Decoder]:
    loaded = open_target(model, **chosen)
    methods = _build_methods(loaded, chosen["speculation"] or {}, *chosen["also"])
    decoder = Decoder(loaded.target, methods)
    give_back()  # what the head, the drafters and the vocabulary took while they were read
    return loaded, decoder


def _build_methods(loaded: LoadedTarget, *wanted: Mapping[str, Any]) -> dict[str, Method]:
    named: dict[str, Method] = {}
    for one in wanted:
        options = dict(one)
        method = str(options.pop("method", "vanilla"))
        if method not in METHODS:
            raise ConfigError(f"no speculation method {method!r}; there are {', '.join(METHODS)}")
        if method in named:
            raise ConfigError(f"speculation {method}: named twice; name each method once")
        try:
            named[method] = build(method, loaded.target, loaded.load_draft, **options)
        except (TypeError, ValueError, torch.OutOfMemoryError) as error:
            raise ConfigError(f"speculation {method}: {error}") from error
    return named


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A checkpoint with its cache; `load_draft` loads a draft model that fits it, each once.

    `dtype` names the type of the weights: float32, bfloat16, float16 or one of `WHOLE_NUMBERS`.
    """

    tokenizer: Tokenizer
    target: Target
    load_draft: LoadModel
    stop_token_ids: set[int]
    dtype: str

    @property
    def is_small(self) -> bool:
        """Whether one CPU thread serves it as fast as several."""
        return parameter_count(shapes(self.target.model.config)) < _SMALL_MODEL


def open_target(model: str | Path, **options: Unpack[BuiltinOptions]) -> LoadedTarget:
    """A checkpoint ready for a speculation method, without an engine.

    Raises:
        ConfigError: the checkpoint or a parameter cannot be used.
    """
    chosen: BuiltinOptions = {**BUILTIN, **options}
    device, dtype, share = chosen["device"], chosen["dtype"], chosen["share"]
    slots = chosen["slots"] or 2 * chosen["rows"]
    path = str(resolve(model))
    tokenizer = load_tokenizer(path, chosen["thinking"])
    config, stored = load_config(path), choose_dtype(device, dtype)
    longest = config.longest_text
    packing = packing_of(device, dtype)
    cached = stored if packing is None else computation(packing)
    length = chosen["max_len"] or _default_len(config, longest, device, cached, slots, share)
    if length > longest:
        raise ConfigError(
            f"max_len must be at most the {longest} positions that {model} can be computed for, "
            f"not {length}"
        )
    if torch.device(device).type == "cuda":
        need = memory_need(config, dtype=stored, slots=slots, max_len=length)
        reserve(need, device=device, share=share)
        # cuDNN plans its attention for each new length, 50 ms and more at a time.
        torch.backends.cuda.enable_cudnn_sdp(False)
    network = load_model(path, device=device, dtype=dtype)
    try:
        target = Target(
            network,
            slots=slots,
            max_len=length,
            vocabulary=min(len(tokenizer.pieces), network.config.vocab_size),
            encode=tokenizer.encode,
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"{model} does not fit with its cache: {first_line(error)}") from error

    @cache
    def load_draft(name: str) -> Network:
        folder = str(resolve(name))
        if load_tokenizer(folder).hash != tokenizer.hash:
            raise ConfigError(
                f"draft model {name} must share the vocabulary of {model}: give another"
            )
        # What it drafts is verified, so 8 bits do if the target's own weights are packed,
        # and 4 if those have 4.
        few = "int4" if packing in FOUR_BITS else "int8" if packing and can_pack() else dtype
        return load_model(folder, device=device, dtype=few)

    name = str(dtype if dtype in WHOLE_NUMBERS else stored).removeprefix("torch.")
    ends = stop_token_ids(path, config, tokenizer)
    return LoadedTarget(tokenizer, target, load_draft, ends, name)


def _default_len(
    config: ModelConfig, longest: int, device: str, dtype: torch.dtype, slots: int, share: float
) -> int:
    """Return the model's context, or what fits beside draft models, other workers and long passes;
    `dtype` is the cache's."""
    place = torch.device(device)
    if place.type == "cuda":
        free, total = torch.cuda.mem_get_info(place)
        need = memory_need(config, dtype=dtype, slots=0, max_len=0)
        size = (min(int(share * total), free) - need.total) // 2
    else:
        size = machine_memory() // 16
    fitting = fitting_len(config, dtype=dtype, slots=slots, size=size) // 128 * 128
    length = min(longest, max(fitting, SHORTEST))
    if length < longest:
        log.warning(
            "max_len is %d tokens of the %d that the model can take: more do not fit beside each "
            "other %d times; give max_len, or lower rows",
            length,
            longest,
            slots,
        )
    return length


def load_tokenizer(path: str, thinking: ThinkingFormat | str = AUTO) -> Tokenizer:
    """Load a checkpoint's tokenizer; transformers converts one without `tokenizer.json`.

    Raises:
        ConfigError: it has none that can be used.
    """
    return tokenizer_files.load_tokenizer(path, _convert_tokenizer, thinking)


def _convert_tokenizer(path: str, folder: Path) -> None:
    from transformers import AutoTokenizer  # slow, and few checkpoints need it

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # a converter raises whatever a file of its format leads to
        raise ConfigError(
            f"{path} has no tokenizer.json, and transformers cannot make one from its other files: "
            f"{first_line(error)}"
        ) from error
    # Where there are no files at all, transformers makes a tokenizer of added tokens alone.
    if tokenizer.is_fast and tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys():
        tokenizer.save_pretrained(folder)


def load_config(path: str) -> ModelConfig:
    """The checkpoint's config.

    Raises:
        ConfigError: there is none, or it asks for a computation that is not ours (`families`).
    """
    try:
        if is_gguf(path):
            return gguf_checkpoint.read_config(path)
        file = checkpoint_folder(path, CONFIG) / CONFIG
        if not file.is_file():
            raise ConfigError(f"{path} has no {CONFIG} that can be read from here")
        written = read_object(file)
        check_family(written, path)
        return ModelConfig.read(written)
    except (OSError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"cannot read the config of {path}: {first_line(error)}") from error


def choose_dtype(device: str, dtype: str | torch.dtype | None) -> torch.dtype:
    """The type of the weights as they are read; None is float32 on the CPU, else bfloat16.

    Raises:
        ConfigError: there is no such type, or not on this device.
    """
    if dtype is None:
        return torch.float32 if device == "cpu" else torch.bfloat16
    if dtype in WHOLE_NUMBERS:
        if device != "cpu" or not can_pack():
            raise ConfigError(
                f"dtype {dtype} is for x86 CPUs, not {device if device != 'cpu' else 'this one'}: "
                "give bfloat16"
            )
        return torch.bfloat16
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.bfloat16, torch.float16):
        known = ", ".join(("float32", "bfloat16", "float16", *WHOLE_NUMBERS))
        raise ConfigError(f"dtype must be one of {known}, not {dtype}")
    return chosen


def packing_of(device: str, dtype: str | torch.dtype | None) -> Packing | None:
    """How weights are packed on that device; None if they are not."""
    if dtype in WHOLE_NUMBERS:
        return dtype
    chosen = choose_dtype(device, dtype)
    if device != "cpu" or chosen == torch.float32:
        return None
    if chosen == torch.bfloat16 and computes_in_bfloat16():
        return "bfloat16"
    return "half" if can_pack() else None


def load_model(
    path: str, *, device: str = "cpu", dtype: str | torch.dtype | None = None
) -> Network:
    """The network on its device.

    Raises:
        ConfigError: it cannot be loaded, or its weights are not those that its config describes.
    """
    config, chosen = load_config(path), choose_dtype(device, dtype)
    try:
        gguf = is_gguf(path)
        weights = gguf_checkpoint.GgufWeights(path, config) if gguf else Safetensors(path)
        return fill(
            config, weights, dtype=chosen, device=device, packing=packing_of(device, dtype),
            folder=path,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, SafetensorError, ConfigError) as error:
        raise ConfigError(f"cannot load the model {path}: {first_line(error)}") from error


def stop_token_ids(path: str, config: ModelConfig, tokenizer: Tokenizer) -> set[int]:
    """End-of-turn ids: those of the generation config, or else the config, and the tokenizer."""
    eos: Any = config.eos_token_id
    if not is_gguf(path):
        generation = read_object(checkpoint_folder(path, GENERATION) / GENERATION)
        eos = generation.get("eos_token_id") if generation else eos
    ids = {*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_id}
    return ids - {None}
