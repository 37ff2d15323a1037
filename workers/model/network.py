"""A checkpoint's weights as modules that are named as in transformers; `Target` computes with them.

They hold weights and sizes and compute nothing, so reading them takes no import of transformers.
"""

from __future__ import annotations

from torch import nn

from workers.model.config import ModelConfig
from workers.model.families import FAMILIES


class Linear(nn.Linear):
    """Without random weights, whose making imports a compiler (torch 2.13)."""

    def reset_parameters(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """As `Linear`."""

    def reset_parameters(self) -> None: ...


class Network(nn.Module):
    """A causal model; its head has the embedding's weights if they are tied.

    `name_or_path` says where it came from; drafters may lie beside it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.name_or_path = config, ""
        self.model = Trunk(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


class Trunk(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class DecoderLayer(nn.Module):
    """The weights of one layer."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.self_attn = SelfAttention(config, index)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(width, epsilon)
        self.post_attention_layernorm = nn.RMSNorm(width, epsilon)
        if FAMILIES[config.model_type].post_norms:
            self.pre_feedforward_layernorm = nn.RMSNorm(width, epsilon)
            self.post_feedforward_layernorm = nn.RMSNorm(width, epsilon)


class SelfAttention(nn.Module):
    """The projections and head norms of one layer."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        family = FAMILIES[config.model_type]
        self.config, self.layer_idx = config, index
        self.head_dim, self.scaling = config.head_dim, config.attention_scale
        inner, outer = (
            heads * config.head_dim
            for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        bias = config.attention_bias or family.qkv_biases
        self.q_proj = Linear(config.hidden_size, inner, bias=bias)
        self.k_proj = Linear(config.hidden_size, outer, bias=bias)
        self.v_proj = Linear(config.hidden_size, outer, bias=bias)
        self.o_proj = Linear(inner, config.hidden_size, bias=config.attention_bias)
        if family.head_norms:
            self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)


class Mlp(nn.Module):
    """The gated feed-forward part of one layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = _activation(config.hidden_act)


def _activation(name: str) -> nn.Module:
    """Return one of `ACTIVATIONS`; three of them are names of one function."""
    if name.startswith("gelu_"):
        return nn.GELU("tanh")
    if name == "gelu":
        return nn.GELU()
    return nn.ReLU() if name == "relu" else nn.SiLU()
