"""Tiny checkpoints: random weights and a byte-level vocabulary with a ChatML-like template."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from deploy.lab.pair.features import TrainableHead
from deploy.lab.pair.kangaroo import TrainableAdapter
from orchestrator.types import StopCriteria, Transcript
from orchestrator.worker import Call
from workers.model.config import ModelConfig
from workers.model.early_exit import AdapterShape
from workers.model.linear import Linear
from workers.model.network import Network
from workers.model.packed import Packing
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer_files import load_tokenizer

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "Let me think about 12 + 34 = 46, step by step.\n\nWait, is that right? Score: 9 of 10.\n\n"
    "assistant user system The answer is 7. Is this step good?\n<|im_start|>user\n"
) * 4
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_tokenizer(
    template: str | None = TEMPLATE, corpus: str = CORPUS, controls: tuple[str, ...] = CONTROLS
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([corpus], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=controls[2])
    fast.add_special_tokens({"additional_special_tokens": list(controls[:3])})
    fast.add_tokens(list(controls[3:]))  # added but not special, as in Qwen3
    fast.chat_template = template
    return fast


def make_model(
    family: str = "llama",
    *,
    layers: int = 2,
    width: int = 32,
    vocabulary: int = 400,
    positions: int = 512,
    seed: int = 0,
) -> Any:
    """Random weights, scaled up so that the distributions are not flat."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=positions,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = "sdpa"
    model = model_class(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.mul_(6)
    return model


def config_of(model: Any) -> ModelConfig:
    """The config of transformers' model."""
    return ModelConfig.read(model.config.to_dict())


def network_of(model: Any, packing: Packing | None = None) -> Network:
    """Transformers' model as our targets compute it."""
    return Network.build(config_of(model), model.state_dict().__getitem__, packing)


def linears(network: Network) -> list[Linear]:
    """All products of a network, the head last."""
    found = []
    for layer in network.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        found += [
            attention.qkv,
            attention.out.linear,
            feed_forward.gate_up,
            feed_forward.down.linear,
        ]
    assert isinstance(network.head, Linear)
    return [*found, network.head]


_FOLDERS = tempfile.TemporaryDirectory()  # gone with the process


@cache
def make_adapter(
    exit_layer: int = 1,
    width: int = 32,
    heads: int = 4,
    key_heads: int = 2,
    seed: int = 0,
    feed_forward: int = 0,
) -> str:
    """A folder with a random adapter, for models of `make_model`'s shape unless it is given."""
    torch.manual_seed(seed)
    shape = AdapterShape(exit_layer, width, heads, key_heads, width // heads, feed_forward)
    adapter = TrainableAdapter(shape, 1e-6)
    adapter.after.weight.data.mul_(6)  # so that some distributions are sharp and some are not
    name = f"{exit_layer}-{width}-{heads}-{key_heads}-{seed}-{feed_forward}"
    folder = Path(_FOLDERS.name) / name
    adapter.save(folder)
    return str(folder)


@cache
def head_folder(**model: Any) -> str:
    """A folder with a random head for `make_model(**model)`; it is gone when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="head-"))
    atexit.register(shutil.rmtree, folder)
    save_head(folder, make_model(**model))
    return str(folder)


def save_head(folder: Path, model: Any) -> None:
    torch.manual_seed(5)
    head = TrainableHead(model)
    for name, parameter in head.named_parameters():
        if "norm" not in name:
            parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    head.save(folder)


@cache
def vllm_checkpoint() -> Path:
    """A folder with a checkpoint that vLLM's kernels for CPUs take: heads of 32, no spare ids."""
    tokenizer = make_tokenizer()
    folder = Path(_FOLDERS.name) / "vllm"
    return save(folder, tokenizer, make_model(width=128, vocabulary=len(tokenizer)))


@cache
def chain_checkpoint(*chain: str, controls: tuple[str, ...] = CONTROLS) -> Path:
    """A folder with a model that writes each of these tokens behind the one before it, and then
    ends its turn; vLLM takes it as well."""
    tokenizer = make_tokenizer(controls=controls)
    model = make_model(width=128, vocabulary=len(tokenizer))
    for parameter in model.model.layers.parameters():
        parameter.zero_()
    rows = model.model.embed_tokens.weight.zero_(), model.lm_head.weight.zero_()
    ids = [*(tokenizer.convert_tokens_to_ids(token) for token in chain), tokenizer.eos_token_id]
    assert len(set(ids)) == len(ids)
    for i, (token, following) in enumerate(pairwise(ids)):
        rows[0][token, i] = rows[1][following, i] = 1.0
    return save(Path(tempfile.mkdtemp(dir=_FOLDERS.name)) / "chain", tokenizer, model)


def save(folder: Path, tokenizer: PreTrainedTokenizerFast, model: Any) -> Path:
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Qwen3 and its tokenizer."""
    tokenizer = make_tokenizer()
    model = make_model("qwen3", vocabulary=len(tokenizer) + 3)  # a padded head
    model.lm_head.weight[-3 - len(CONTROLS) : -3] *= 0  # greedy texts do not end by themselves
    return save(tmp_path_factory.mktemp("tiny"), tokenizer, model)


@pytest.fixture(scope="session")
def draft_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with the same vocabulary."""
    tokenizer = make_tokenizer()
    model = make_model("qwen3", layers=1, width=16, vocabulary=len(tokenizer), seed=1)
    return save(tmp_path_factory.mktemp("draft"), tokenizer, model)


@pytest.fixture
def prompts(checkpoint: Path) -> PromptRenderer:
    return PromptRenderer(load_tokenizer(str(checkpoint)))


@pytest.fixture(scope="session")
def prompts_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., PromptRenderer]:
    """PromptRenderer of a tokenizer made to order."""

    def make(**options: Any) -> PromptRenderer:
        folder = tmp_path_factory.mktemp("tokenizer")
        make_tokenizer(**options).save_pretrained(folder)
        return PromptRenderer(load_tokenizer(str(folder)))

    return make


def continuation(
    prompts: PromptRenderer, transcript: Transcript, criteria: StopCriteria
) -> Continuation:
    """What continues a transcript of an unknown model's."""
    return Continuation(
        Call("r", transcript),
        criteria,
        prompts,
        [0] * 9,
        stop_token_ids=prompts.tokenizer.ends,
        context=None,
    )
