"""The lean decoder layer says what transformers' own says, on the same weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from workers.model.layer import Layer, RMSNorm, attend
from workers.model.target import Target
from workers.model.tree import Tree

SIZES = {
    "vocab_size": 97, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, Any] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama with biases": (
        LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}
    ),
    "llama with yarn": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
        "original_max_position_embeddings": 16,
    }}),
    "llama 3": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    }}),
    "llama tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama gelu": (LlamaForCausalLM, LlamaConfig, {"hidden_act": "gelu"}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
}  # fmt: skip


def network(family: str, key_heads: int) -> Any:
    """A random model of which no weight is what an initializer leaves (norms of one, no bias)."""
    kind, config, more = FAMILIES[family]
    torch.manual_seed(3)
    model = kind(config(**SIZES, **more, num_key_value_heads=key_heads)).double().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    return model.requires_grad_(False)


def stock_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_stock_model(family: str, key_heads: int) -> None:
    model = network(family, key_heads)
    first, second = [5, 9, 33, 2, 71, 8], [60, 61, 5]
    wanted = stock_logits(model, first), stock_logits(model, second)
    target = Target(model, slots=3, max_len=32)
    with torch.inference_mode():
        whole = target.extend(0, first, num_logits=6).logits[0]  # no mask: causal
        target.extend(2, first[:2], num_logits=0)
        rest = target.extend(2, first[2:5], num_logits=3).logits[0]  # under a mask
        one = target.forward([2], [Tree([first[5]], [-1])]).logits[0]  # a single query
        trees = [Tree([first[5]], [-1]), Tree.chain(second)]
        target.cache.lengths[1] = 0
        batch = target.forward([1, 2], [trees[1], trees[0]]).logits  # ragged rows
    for found, known in (
        (whole, wanted[0]),
        (rest, wanted[0][2:5]),
        (one, wanted[0][5:]),
        (batch[0], wanted[1]),
        (batch[1, :1], wanted[0][5:]),
    ):  # the stock norms compute in float32 even here
        torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stock_model_stays_whole(family: str) -> None:
    model = network(family, 2)
    ids, before = [4, 8, 15], copy.deepcopy(model.state_dict())
    wanted = stock_logits(model, ids)
    Target(model, slots=1, max_len=16)
    torch.testing.assert_close(stock_logits(model, ids), wanted, rtol=1e-10, atol=1e-10)
    if family == "llama tied":
        assert model.lm_head.weight is model.model.embed_tokens.weight
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_weights_are_held_once_however_many_targets_there_are() -> None:
    model = network("qwen2", 2)
    layers = [Layer(model.model.layers[0]) for _ in range(2)]
    stock = model.model.layers[0].self_attn.k_proj
    for layer in layers:
        weight, bias = layer.attention.qkv.weight, layer.attention.qkv.bias
        assert weight.untyped_storage().data_ptr() == stock.weight.untyped_storage().data_ptr()
        assert bias is not None
        assert bias.untyped_storage().data_ptr() == stock.bias.untyped_storage().data_ptr()
        assert torch.equal(weight[:, 32:48], stock.weight.t())
    stock.weight[0, 0] = 7.0
    assert layers[1].attention.qkv.weight[0, 32] == 7.0


def test_weights_that_lie_in_another_order_are_copied() -> None:
    model = network("llama", 2)
    attention = model.model.layers[0].self_attn
    key, query, value = (getattr(attention, f"{name}_proj") for name in "kqv")
    wanted = torch.cat([part.weight for part in (query, key, value)])
    whole = torch.cat([part.weight for part in (key, query, value)])
    for part, view in zip((key, query, value), whole.split([16, 32, 16]), strict=True):
        part.weight = torch.nn.Parameter(view, requires_grad=False)
    layer = Layer(model.model.layers[0])
    assert torch.equal(layer.attention.qkv.weight, wanted.t())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-2, 1e4])
def test_a_norm_is_the_stock_one_however_small_the_vector(scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = (scale * torch.randn(3, 24)).to(dtype)
    weight = torch.randn(24).to(dtype)
    wanted = functional.rms_norm(x.double(), (24,), weight.double(), 1e-6)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        RMSNorm(weight, 1e-6)(x).double(), wanted, rtol=tolerance, atol=1e-12
    )
    by_head = RMSNorm(torch.stack([weight, 2 * weight])[:, None], 1e-6)(x.expand(1, 2, 3, 24))
    pair = torch.stack([wanted, 2 * wanted])[None]
    torch.testing.assert_close(by_head.double(), pair, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_heads_that_share_keys_attend_as_if_each_had_its_own(
    transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel lays its answer out by tokens, as the memory-efficient one does."""
    kernel = functional.scaled_dot_product_attention

    def by_tokens(*args: Any, **options: Any) -> torch.Tensor:
        mixed: torch.Tensor = kernel(*args, **options)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2) if transposed else mixed

    monkeypatch.setattr(functional, "scaled_dot_product_attention", by_tokens)
    torch.manual_seed(1)
    queries = torch.randn(2, 6, 3, 8, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64)
    mask = torch.zeros(2, 1, 3, 5, dtype=torch.float64)
    mask[0, 0, 1, 2:] = mask[1, 0, 0, 3] = -torch.inf
    apart = [one.repeat_interleave(3, dim=1) for one in (keys, values)]
    torch.testing.assert_close(attend(queries, keys, values, mask), attend(queries, *apart, mask))
