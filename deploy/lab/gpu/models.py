"""Checkpoints with random weights in the shapes of real ones, and workers over them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

VOCABULARY: Final = 151_936
CONTEXT: Final = 4096
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATE_TOKENS: Final = 20  # of a question and a space; a character is a token
ENDS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
SHAPES: Final = {  # width, inner width, layers, heads, heads of keys, tied
    "tiny": (64, 128, 2, 2, 1, True),
    "1.5b": (1536, 8960, 28, 12, 2, True),
    "32b": (5120, 27648, 64, 40, 8, False),
}
"""Those of Qwen2.5, and one for a trial on a CPU."""


def config_of(shape: str) -> Any:
    """The config of a shape."""
    from transformers import Qwen2Config

    width, inner, layers, heads, key_heads, tied = SHAPES[shape]
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        tie_word_embeddings=tied,
        max_position_embeddings=CONTEXT,
        initializer_range=0.02 if shape != "tiny" else 0.2,  # else all tokens are as likely
        eos_token_id=VOCABULARY - 2,
        bos_token_id=None,
        dtype="bfloat16",
    )


def checkpoint(shape: str, root: Path, weights: bool = False) -> str:
    """A folder with a shape's config, a tokenizer that has a piece for every id, and perhaps
    weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

    folder = root / (f"{shape}-weights" if weights else shape)
    if not (folder / "ready").is_file():
        pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
        pieces += [f"Ġ{number}" for number in range(VOCABULARY - len(pieces) - len(ENDS))]
        ids = {piece: place for place, piece in enumerate(pieces)}
        backend = Tokenizer(models.BPE(ids, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([*ENDS])
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=ENDS[1])
        fast.chat_template = TEMPLATE
        fast.save_pretrained(folder)
        config_of(shape).save_pretrained(folder)
        if weights:
            Qwen2ForCausalLM(config_of(shape)).float().save_pretrained(folder)
        (folder / "ready").touch()
    return str(folder)


def vllm_worker(shape: str, root: Path, device: str, **options: Any) -> Any:
    """A worker over vLLM's engine; `cache_gib` is of its keys and values."""
    from workers.vllm.loading import load

    arguments: dict[str, Any] = {"load_format": "dummy"}
    arguments["kv_cache_memory_bytes"] = int(options.pop("cache_gib") * 2**30)
    if device != "cpu":  # a pass over vLLM's 8,192 takes memory that the pair needs
        arguments["max_num_batched_tokens"] = 2048
    return load(
        checkpoint(shape, root),
        device=device,
        dtype="bfloat16",
        max_len=CONTEXT,
        threads=1 if device == "cpu" else None,
        engine_args=arguments,
        **options,
    )


def builtin_worker(shape: str, root: Path, device: str, rows: int) -> Any:
    """A worker over our engine, in bfloat16 on a GPU."""
    import torch

    from workers.engine import loading
    from workers.model.network import Network
    from workers.model.shapes import shapes

    def random_weights(path: str, **_: Any) -> Network:
        config = loading.load_config(path)
        known = shapes(config)

        def read(name: str) -> torch.Tensor:
            size = known[name]
            norm = len(size) == 1 and not name.endswith(".bias")
            weight = torch.full(size, float(norm), dtype=torch.bfloat16, device=device)
            return weight.normal_(std=0.02) if weight.dim() > 1 else weight

        return Network.build(config, read)

    stock, loading.load_model = loading.load_model, random_weights
    try:
        return loading.load(
            checkpoint(shape, root), device=device, rows=rows, slots=rows, max_len=2048
        )
    finally:
        loading.load_model = stock


@cache
def piece(tokens: int) -> str:
    """A text of this many tokens: every character is one."""
    return "".join(chr(ord("a") + place % 26) for place in range(tokens))
