"""What a config.json may say, and what is refused of it by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import transformers

from orchestrator.errors import ConfigError
from tests.workers.conftest import config_of
from tests.workers.model.families import CASES, SIZES, network
from workers.model import families
from workers.model.config import ModelConfig
from workers.model.early_exit import AdapterShape
from workers.model.families import FAMILIES, check_family
from workers.speculation.feature_head import head_kind

CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config,
    "smollm3": transformers.SmolLM3Config, "granite": transformers.GraniteConfig,
    "gemma3_text": transformers.Gemma3TextConfig,
}  # fmt: skip

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
        "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
        "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 49152,
    },
    "Qwen2.5-Math-7B-Instruct": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 4096,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": True,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
    },
    "Llama-3.2-3B-Instruct, as a fine-tuning tool saves it": {
        "_name_or_path": "x/y", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 128000, "head_dim": 128,
        "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 3072,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 24,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "pad_token_id": 128004,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.51.3",
        "unsloth_fixed": True, "unsloth_version": "2025.4.7", "use_cache": False,
        "vocab_size": 128256,
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
        "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False,
        "use_sliding_window": False, "vocab_size": 128256,
    },
    "gemma-3-270m-it": {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
        "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "initializer_range": 0.02,
        "intermediate_size": 2048,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
        "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
        "torch_dtype": "bfloat16", "transformers_version": "4.55.0.dev0", "use_cache": True,
        "use_bidirectional_attention": False, "vocab_size": 262144,
    },
}  # fmt: skip
"""Configs with the keys that published checkpoints carry."""


def config(family: str = "llama", **more: Any) -> dict[str, Any]:
    return {"model_type": family, "architectures": [FAMILIES[family].architecture], **more}


@pytest.mark.parametrize("case", CASES)
def test_what_is_compared_with_transformers_is_what_passes(case: str) -> None:
    model = network(case)
    for written in (model.config.to_dict(), model.config.to_diff_dict()):
        assert check_family(written, "m").architecture == type(model).__name__


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_harmless_keys_of_published_checkpoints_pass(name: str) -> None:
    assert check_family(CHECKPOINTS[name], name) is FAMILIES[CHECKPOINTS[name]["model_type"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_the_config_class_is_followed_harmless_or_refused(family: str) -> None:
    """A field that a new transformers brings fails here, and is looked at."""
    known = families.EVERYWHERE | FAMILIES[family].follows | families.WITHOUT_EFFECT
    unknown = {one.name for one in fields(CONFIGS[family])} - known - {"is_encoder_decoder"}
    refused = {key for key in unknown if list(families.problems(config(family, **{key: 0.5})))}
    assert unknown == refused
    assert unknown == (
        {"attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"}
        if family == "gemma3_text"
        else set()
    )
    assert not FAMILIES[family].follows & families.WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"model_type": "helium"}, "model_type must be one of llama, .*, not 'helium'"),
        ({"model_type": None}, "not None"),
        ({"model_type": ["llama"]}, "model_type must be one of"),
        ({"architectures": None}, r"architectures must be \[LlamaForCausalLM\] with llama"),
        (config("mistral") | {"architectures": ["LlamaForCausalLM"]}, "MistralForCausalLM"),
        (config("granite") | {"architectures": ["LlamaForCausalLM"]}, "GraniteForCausalLM"),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, r"not \['LlamaForCausalLM', 'Other'\]"),
        ({"is_causal": False}, "is_causal must be true, not False"),
        ({"sliding_window": 4096}, "sliding_window is unknown to Llama .* not 4096"),
        ({"layer_types": ["sliding_attention"]}, "layer_types must be full_attention each"),
        (config("qwen3", layer_types=["chunked_attention"]), "not 'chunked_attention'"),
        (config("mistral", sliding_window=0), "sliding_window must be a number of tokens or null"),
        (config("mistral", attention_bias=True), "attention_bias is unknown to Mistral"),
        (config("qwen2", mlp_bias=True), "mlp_bias is unknown to Qwen2"),
        ({"residual_multiplier": 0.2}, "residual_multiplier is unknown to Llama"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, not 0.5"),
        (config("gemma3_text", final_logit_softcapping=30.0), "final_logit_softcapping"),
        (config("gemma3_text", attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        (config("gemma3_text", use_bidirectional_attention=True), "use_bidirectional_attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be absent"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.Y"}}, "auto_map names code .*x.Y"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_scaling.rope_type must be one of .*'mrope'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_scaling.rope_type must be one of"),
        ({"rope_scaling": "linear"}, "rope_scaling must be a mapping"),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
            "rope_parameters.mrope_section is unknown",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor",
        ),
        (
            config("gemma3_text", rope_parameters={"full_attention": {"rope_type": "axial"}}),
            "rope_parameters.full_attention.rope_type",
        ),
    ],
)
def test_what_would_be_computed_otherwise_is_refused_by_name(
    said: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        check_family(config() | said, "org/model")
    assert str(caught.value).startswith("org/model would not be computed as its authors do: ")
    assert str(caught.value).endswith("Give another model, or a server's url")


def test_all_problems_are_named_at_once() -> None:
    found = list(families.problems(config(is_causal=False, logits_scaling=8)))
    assert [one.split()[0] for one in found] == ["is_causal", "logits_scaling"]


def test_keys_that_contradict_each_other() -> None:
    cases = {
        "needs a sliding_window": ("qwen2", {"layer_types": ["sliding_attention"] * 4}),
        "no_rope_layers must have an entry for each of 4": (
            "smollm3", {"no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 4}
        ),
    }  # fmt: skip
    for reason, (family, more) in cases.items():
        with pytest.raises(ValueError, match=reason):
            ModelConfig.read({**SIZES, "model_type": family, **more})


def test_parts_that_are_trained_for_plain_layers_say_so() -> None:
    plain = {case for case in CASES if case.partition(",")[0] in ("llama", "llama 3")}
    plain |= {"mistral, no window", "qwen2", "qwen3"}
    for case in CASES:
        config = config_of(network(case))
        if case in plain:
            assert AdapterShape.of(config, 1).exit_layer == 1
            continue
        with pytest.raises(ValueError, match="an early exit needs a model whose layers all"):
            AdapterShape.of(config, 1)
        with pytest.raises(ValueError, match="a feature head needs a model whose layers all"):
            head_kind(config)


def test_texts_end_where_a_rope_would_change() -> None:
    configs = {case: config_of(network(case)) for case in CASES}
    assert configs["llama"].longest_text == 64
    assert configs["llama, dynamic rope"].longest_text == 64
    assert configs["llama, longrope"].longest_text == 32
    assert configs["gemma 3"].longest_text == 64
    limits = {case: config.rope_limit for case, config in configs.items()}
    assert {case: one for case, one in limits.items() if one} == {
        "llama, dynamic rope": 64, "llama, longrope": 32,
    }  # fmt: skip


def test_the_list_in_the_docs_is_this_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in page.splitlines() if "ForCausalLM` |" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [one.name, f"`{kind}`", f"`{one.architecture}`"] for kind, one in FAMILIES.items()
    ]
    assert ", ".join(f"`{rope}`" for rope in families.ROPES) in page
