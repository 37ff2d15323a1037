"""A lean training twin of Hugging Face's Llama, which it exports to exactly."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from deploy.lab.pair.batches import HEAD_DIM, ROPE_THETA, Batch
from deploy.lab.pair.progress import Schedule

EPS = 1e-6
CONTEXT = 1024  # in config.json


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """Everything that defines a run of a model."""

    layers: int
    width: int
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    weight_decay: float = 0.1  # of the matrices
    flag_layer: int | None = None  # the flag head reads the residual stream after this many blocks
    flag_weight: float = 0.3
    vocab: int = 1024
    compile: bool = True

    @property
    def ffn(self) -> int:
        """8/3 of the width, rounded to 32."""
        return 32 * round(self.width / 12)


def norm(x: Tensor, gain: Tensor, dtype: torch.dtype) -> Tensor:
    """RMSNorm in float32, result in the matrix-product type. (..., d) -> (..., d)."""
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gain).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE, Llama's half-split form. (B, T, H, 32) -> (B, H, T, 32), same type."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype).transpose(1, 2)


def block(
    x: Tensor,
    gains: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    cos: Tensor,
    sin: Tensor,
    bias: Tensor,
) -> Tensor:
    """One layer. x (B, T, d) float32; weights qkv (3, d, d), o (d, d), gate-up (2, f, d), down.

    `down` is stored transposed, (f, d), so that all three feed-forward matrices have one shape.
    Attention is plain matrix products: on CPU that beats the fused kernel's backward pass.
    """
    qkv, o, gate_up, down = weights
    rows, length, width = x.shape
    h = norm(x, gains[0], qkv.dtype)
    q, k, v = F.linear(h, qkv.flatten(0, 1)).view(rows, length, 3, -1, HEAD_DIM).unbind(2)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    scores = (q @ k.transpose(2, 3)) * HEAD_DIM**-0.5 + bias
    mixed = scores.softmax(-1, dtype=torch.float32).to(h.dtype) @ v.transpose(1, 2)
    x = x + F.linear(mixed.transpose(1, 2).reshape(rows, length, width), o)
    h = norm(x, gains[1], qkv.dtype)
    gate, up = F.linear(h, gate_up.flatten(0, 1)).chunk(2, -1)
    return x + (F.silu(gate.float()) * up).to(h.dtype) @ down


def head(x: Tensor, gain: Tensor, embed: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits of the tied vocabulary head: x (N, d), embed (V, d) -> (N, V)."""
    return F.linear(norm(x, gain, dtype), embed.to(dtype))


def head_loss(
    x: Tensor, gain: Tensor, embed: Tensor, dtype: torch.dtype, targets: Tensor, weights: Tensor
) -> Tensor:
    """Weighted sum of cross-entropies, scalar float32. x (N, d), targets and weights (N,)."""
    logits = head(x, gain, embed, dtype).float()
    picked = logits.gather(1, targets[:, None])[:, 0]
    return ((logits.logsumexp(1) - picked) * weights).sum()


class Llama:
    """Parameters in one flat float32 vector: attention, feed-forward, embedding, norms, flag head.

    The first `matrices` numbers are Muon's; a copy in `dtype` computes with them.
    """

    def __init__(self, recipe: Recipe, dtype: torch.dtype) -> None:
        r, d, f = recipe, recipe.width, recipe.ffn
        self.recipe, self.dtype = recipe, dtype
        sizes = (r.layers * 4 * d * d, r.layers * 3 * f * d, r.vocab * d, (2 * r.layers + 1) * d)
        self.matrices = sizes[0] + sizes[1]
        generator = torch.Generator().manual_seed(r.seed)
        self.flat = torch.randn(sum(sizes) + d + 1, generator=generator) * 0.02
        self.attention, self.mlp, embed, norms, flag = self.flat.split((*sizes, d + 1))
        self.attention = self.attention.view(r.layers, 4, d, d)
        self.mlp = self.mlp.view(r.layers, 3, f, d)
        # Residual outputs start small in proportion to depth (GPT-2), norms at 1, flag head at 0.
        self.attention[:, 3] /= math.sqrt(2 * r.layers)
        self.mlp[:, 2] /= math.sqrt(2 * r.layers)
        norms.fill_(1)
        flag.zero_()
        self.embed, self.norms = embed.view(r.vocab, d), norms.view(-1, d)
        # Leaves of the autograd graph, in flat order. Float32 ones share memory with `flat`.
        self.half = torch.empty(self.matrices, dtype=dtype)
        a, m = self.half.split(sizes[:2])
        self.leaves = [
            part.requires_grad_()
            for stack, cut in ((a.view_as(self.attention), 3), (m.view_as(self.mlp), 2))
            for layer in stack.unbind()
            for part in (layer[:cut], layer[cut])
        ]
        self.leaves += [t.detach().requires_grad_() for t in (self.embed, self.norms, flag)]
        self.refresh()
        self.block, self.head_loss = block, head_loss
        if r.compile and shutil.which(os.environ.get("CXX", "g++")):
            self.block = torch.compile(block, dynamic=True)
            self.head_loss = torch.compile(head_loss, dynamic=True)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the master matrices into the matrix-product type, after each update."""
        self.half.copy_(self.flat[: self.matrices])

    def hidden(self, batch: Batch) -> Iterator[Tensor]:
        """The residual stream before the first block and after each one: (B, T, d) float32."""
        layers = self.recipe.layers
        embed, norms, _ = self.leaves[-3:]
        gains = norms.unbind()
        x = F.embedding(batch.tokens, embed)
        yield x
        for i in range(layers):
            weights = (*self.leaves[2 * i : 2 * i + 2], *self.leaves[2 * (layers + i) :][:2])
            pair = (gains[2 * i], gains[2 * i + 1])
            x = self.block(x, pair, weights, batch.cos, batch.sin, batch.bias)
            yield x

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Weighted sum of cross-entropies, and sum of the flags' binary cross-entropies."""
        embed, norms, flag = self.leaves[-3:]
        flag_loss = torch.zeros(())
        for depth, x in enumerate(self.hidden(batch)):
            if depth == self.recipe.flag_layer and len(batch.flags):
                seen = F.rms_norm(x.flatten(0, 1)[batch.flag_at], x.shape[-1:])
                logits = seen @ flag[:-1] + flag[-1]
                flag_loss = F.binary_cross_entropy_with_logits(logits, batch.flags, reduction="sum")
        x = x.flatten(0, 1).index_select(0, batch.at)
        return self.head_loss(
            x, norms[-1], embed, self.dtype, batch.targets, batch.weights
        ), flag_loss

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V), for tests."""
        *_, x = self.hidden(batch)
        return head(x, self.norms[-1], self.embed, self.dtype)

    def names(self) -> dict[str, Tensor]:
        """Hugging Face's parameter names, as views of `flat`."""
        out = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norms[-1]}
        for i in range(self.recipe.layers):
            at = f"model.layers.{i}."
            for j, name in enumerate(("q", "k", "v", "o")):
                out[f"{at}self_attn.{name}_proj.weight"] = self.attention[i, j]
            for j, name in enumerate(("gate", "up")):
                out[f"{at}mlp.{name}_proj.weight"] = self.mlp[i, j]
            out[f"{at}mlp.down_proj.weight"] = self.mlp[i, 2].T
            out[f"{at}input_layernorm.weight"] = self.norms[2 * i]
            out[f"{at}post_attention_layernorm.weight"] = self.norms[2 * i + 1]
        return out

    def export(self, out: Path, tokenizer_dir: Path | None = None) -> None:
        """Write `out` as a bfloat16 Hugging Face checkpoint."""
        from safetensors.torch import save_file
        from transformers import LlamaConfig

        r = self.recipe
        out.mkdir(parents=True, exist_ok=True)
        config = LlamaConfig(
            vocab_size=r.vocab,
            hidden_size=r.width,
            intermediate_size=r.ffn,
            num_hidden_layers=r.layers,
            num_attention_heads=r.width // HEAD_DIM,
            num_key_value_heads=r.width // HEAD_DIM,
            head_dim=HEAD_DIM,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            tie_word_embeddings=True,
            dtype="bfloat16",
            architectures=["LlamaForCausalLM"],
            bos_token_id=None,
            **_control_ids(tokenizer_dir),
        )
        config.save_pretrained(out)
        state = {k: v.to(torch.bfloat16).contiguous() for k, v in self.names().items()}
        save_file(state, out / "model.safetensors", {"format": "pt"})
        for path in sorted(tokenizer_dir.glob("*token*")) if tokenizer_dir else []:
            shutil.copy(path, out)


def _control_ids(tokenizer_dir: Path | None) -> dict[str, int]:
    """`eos_token_id` and `pad_token_id` for config.json, as the tokenizer's files have them."""
    if tokenizer_dir is None:
        return {}
    names = json.loads((tokenizer_dir / "tokenizer_config.json").read_text())
    added = json.loads((tokenizer_dir / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    return {f"{kind}_token_id": ids[names[f"{kind}_token"]] for kind in ("eos", "pad")}
