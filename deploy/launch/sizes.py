"""What a machine has, and what a model needs of it, by arithmetic on its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.launch.quantization import weight_bits
from deploy.service.extras import want
from orchestrator.errors import ConfigError
from workers.control_groups import machine_memory, usable_cores
from workers.reporting import first_line

GB = 10**9
ENGINE_BYTES = 3 * GB
"""What an engine takes of a GPU beside weights and cache: CUDA's context, activations, graphs."""
_PACKED_BITS = {"bfloat16": (16, 16), "int8": (8, 8), "int4": (5, 8), "int4+bfloat16": (21, 8)}
"""Bits of a weight in a layer and in the head; a group's step and middle are a bit a weight."""
BFLOAT16 = (8, 0)  # compute capability below which a GPU computes in float16


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
    cores: int  # that may compute all the time
    memory: int
    int8: bool = True

    @classmethod
    def look(cls) -> Machine:
        want("engine", "a model on this machine", "torch", "transformers")
        import torch

        from workers.model.packed import can_pack

        gpus = tuple(
            Gpu(properties.name, properties.total_memory, (properties.major, properties.minor))
            for properties in map(
                torch.cuda.get_device_properties, range(torch.cuda.device_count())
            )
        )
        return cls(gpus, usable_cores(), machine_memory(), can_pack())

    def __str__(self) -> str:
        if not self.gpus:
            return f"no GPU, {self.cores} cores, {in_gb(self.memory)} of memory"
        names = ", ".join(f"{gpu.name} ({in_gb(gpu.memory)})" for gpu in self.gpus)
        return f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)}: {names}"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A checkpoint by its config."""

    name: str
    parameters: int
    token_bytes: int  # of a cached token, in 16 bits
    context: int
    heads: int  # vLLM divides them among GPUs,
    kv_heads: int  # and repeats these if there are fewer than GPUs
    matrices: int = 0  # parameters in `bits` each; most others are the embedding's and the head's
    bits: float = 16
    not_ours: str = ""  # why Baton's own engine does not run it
    vocabulary: str = ""  # a hash, empty if it is not known
    tied: bool = False  # whether the embedding and the head are one

    @classmethod
    def of(cls, name: str) -> ModelSize:
        """Read a folder, a GGUF file or a Hugging Face id.

        Raises:
            ConfigError: it has no config that transformers can read.
        """
        from workers.embedded.checkpoints import resolve
        from workers.engine.loading import load_config
        from workers.model.shapes import EMBEDDING, HEAD, parameter_count, shapes
        from workers.text.gguf_tokenizer import is_gguf

        path, not_ours, bits = str(resolve(name)), "", 16.0
        try:
            config: Any = load_config(path)
            weights = shapes(config)
            parameters = parameter_count(weights)
            matrices = parameter_count(
                {k: v for k, v in weights.items() if len(v) > 1 and k not in (EMBEDDING, HEAD)}
            )
        except ConfigError as error:
            if is_gguf(path):
                raise ConfigError(f"cannot tell the size of {name}: {error}") from error
            not_ours = str(error)
            config, parameters, matrices, bits = _read_with_transformers(path, name)
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            name,
            parameters,
            4 * config.num_hidden_layers * config.num_key_value_heads * size,
            config.max_position_embeddings,
            heads,
            config.num_key_value_heads,
            matrices,
            bits,
            not_ours,
            _vocabulary(path),
            bool(config.tie_word_embeddings),
        )

    @property
    def weights(self) -> int:
        """Bytes, in 16 bits but for what is quantized."""
        return int(2 * (self.parameters - self.matrices) + self.bits / 8 * self.matrices)

    def packed(self, dtype: str) -> int:
        """Bytes in Baton's own engine on a CPU with weights of that type. If they are packed, the
        embedding keeps 16 bits, and a head that is tied to it is a second copy."""
        if dtype == "float32":
            return 4 * self.parameters
        ends = self.parameters - self.matrices
        embedding = ends if self.tied else ends // 2
        head = ends if self.tied else ends - embedding
        inside, outside = _PACKED_BITS[dtype]
        return 2 * embedding + (inside * self.matrices + outside * head) // 8

    @property
    def size(self) -> str:
        return f"{in_gb(self.weights)} in {round(self.bits)} bits"

    def can_spread(self, gpus: int) -> bool:
        """Whether vLLM can spread its layers over `gpus` GPUs."""
        most, least = max(gpus, self.kv_heads), min(gpus, self.kv_heads)
        return self.heads % gpus == 0 and most % least == 0

    def need(self, gpus: int, tokens: int) -> int:
        """Bytes on each of `gpus` GPUs, with a cache of `tokens`."""
        cache = tokens * self.token_bytes // min(gpus, self.kv_heads)
        return self.weights // gpus + ENGINE_BYTES + cache


def _read_with_transformers(path: str, name: str) -> tuple[Any, int, int, float]:
    """The config of a model of any family, its parameters, those of them that a quantized
    checkpoint packs, and the bits of one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

    try:
        written, _ = PreTrainedConfig.get_config_dict(path)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config()
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except Exception as error:  # whatever a config class or the hub raises
        raise ConfigError(f"cannot tell the size of {name}: {first_line(error)}") from error
    ends = [network.get_input_embeddings(), network.get_output_embeddings()]
    outside = {id(one) for end in ends if end is not None for one in end.parameters()}
    every = list(network.parameters())
    matrices = sum(one.numel() for one in every if one.ndim > 1 and id(one) not in outside)
    bits = weight_bits(written.get("quantization_config") or {}) or 16
    return config, sum(one.numel() for one in every), matrices, bits


def one_vocabulary(first: str, second: str) -> bool:
    """Whether two models are known to have the same vocabulary; an unknown one is empty."""
    return first != "" and first == second


def _vocabulary(path: str) -> str:
    """A checkpoint's vocabulary, as `Tokenizer.hash`; empty if it cannot be read."""
    from workers.text.tokenizer_files import load_tokenizer

    try:
        return load_tokenizer(path).hash
    except ConfigError:
        return ""


def in_gb(size: int) -> str:
    return f"{size / GB:.1f} GB"
