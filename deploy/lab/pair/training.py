"""The training loop, its schedule, and the Llama models that it trains.

The learning rate rises linearly over the warm-up, stays, and falls linearly to 0 at the end: the
trapezoid of https://arxiv.org/abs/2405.18392. Matrices are Muon's, with the learning-rate scale of
https://arxiv.org/abs/2502.16982; the rest is AdamW's.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, functional
from transformers import LlamaConfig, LlamaForCausalLM

from deploy.lab.pair.batches import Batch, Buckets, TrainingDocument, collate

LOG_SECONDS = 10.0
HEAD_DIM = 32
FLAG_WEIGHT = 0.3


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The length of a run and the size of its steps."""

    tokens: int
    warmup: int = 40  # steps
    decay: float = 0.5  # last share of the run
    batch_tokens: int = 4096  # padding included
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    weight_decay: float = 0.0  # of the matrices
    seed: int = 0

    def scale(self, step: int, tokens: int) -> float:
        """The factor of the learning rates at a step, after this many tokens."""
        left = max(0.0, 1 - tokens / self.tokens)
        return min(1.0, step / self.warmup) * min(1.0, left / self.decay)


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """Everything that defines a run of a model."""

    layers: int
    width: int
    weight_decay: float = 0.1
    flag_layer: int | None = None  # the flag head reads the residual stream after this many layers
    vocab: int = 1024


def fit(
    module: Module,
    matrices: list[Tensor],
    documents: Iterator[TrainingDocument],
    loss_of: Callable[[Batch], Tensor],
    schedule: Schedule,
    log: Callable[[str], None],
) -> None:
    """Train a module to the end of the schedule; `matrices` are the parameters of Muon."""
    known = set(map(id, matrices))
    others = [one for one in module.parameters() if id(one) not in known]
    optimizers: list[tuple[torch.optim.Optimizer, float]] = [
        (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), schedule.adam_lr)
    ]
    if matrices:
        muon = torch.optim.Muon(
            matrices, weight_decay=schedule.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        optimizers.append((muon, schedule.muon_lr))
    buckets, began = Buckets(documents, schedule.batch_tokens), time.monotonic()
    tokens, step, logged = 0, 0, began
    while tokens < schedule.tokens:
        batch = collate(*buckets.take())
        loss = loss_of(batch)
        module.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        tokens, step = tokens + batch.count, step + 1
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule.scale(step, tokens)
            optimizer.step()
        now, share = time.monotonic(), tokens / schedule.tokens
        if now - logged >= LOG_SECONDS or share >= 1:
            logged, left = now, (now - began) * (1 - share) / share
            log(f"{share:6.1%} step {step} loss {loss.item():.4f} left {left:.0f} s")


class PairModel(Module):
    """A Llama model, and a head on one of its layers that flags what comes after an error."""

    def __init__(self, recipe: Recipe, **token_ids: int) -> None:
        super().__init__()
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        heads = recipe.width // HEAD_DIM
        self.llama: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=recipe.vocab,
                hidden_size=recipe.width,
                intermediate_size=32 * round(recipe.width / 12),  # 8/3 of the width
                num_hidden_layers=recipe.layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                head_dim=HEAD_DIM,
                max_position_embeddings=1024,
                rms_norm_eps=1e-6,
                tie_word_embeddings=True,
                bos_token_id=None,
                **token_ids,
            )
        )
        self.flag = torch.nn.Linear(recipe.width, 1)
        with torch.no_grad():  # outputs into the residual stream start small in proportion to depth
            self.flag.weight.zero_()
            self.flag.bias.zero_()
            for layer in self.llama.model.layers:
                layer.self_attn.o_proj.weight /= math.sqrt(2 * recipe.layers)
                layer.mlp.down_proj.weight /= math.sqrt(2 * recipe.layers)

    @property
    def matrices(self) -> list[Tensor]:
        """The matrices of the layers."""
        return [one for one in self.llama.model.layers.parameters() if one.dim() == 2]

    def hidden(self, batch: Batch) -> tuple[Tensor, ...]:
        """The residual stream before the first layer and after each; the last one is normed."""
        states: tuple[Tensor, ...] = self.llama.model(
            batch.tokens,
            attention_mask=batch.bias,
            position_ids=batch.positions,
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
        return states

    def loss(self, batch: Batch) -> Tensor:
        """The weighted cross-entropy, and the flags' part."""
        states = self.hidden(batch)
        logits = self.llama.lm_head(states[-1].flatten(0, 1)[batch.at])
        each = functional.cross_entropy(logits, batch.targets, reduction="none")
        loss = (each * batch.weights).sum() / batch.weights.sum().clamp(min=1e-6)
        if self.recipe.flag_layer is not None and len(batch.flags):
            seen = states[self.recipe.flag_layer].flatten(0, 1)[batch.flag_at]
            flags = self.flag(functional.rms_norm(seen, seen.shape[-1:]))[:, 0]
            wrong = functional.binary_cross_entropy_with_logits(flags, batch.flags)
            loss = loss + FLAG_WEIGHT * wrong
        return loss


def train(
    recipe: Recipe,
    documents: Iterator[TrainingDocument],
    out: Path,
    tokenizer: Path,
    log: Callable[[str], None] = print,
) -> None:
    """Train a model and write it to `out` in bfloat16, with the files of its tokenizer."""
    names = json.loads((tokenizer / "tokenizer_config.json").read_text())
    added = json.loads((tokenizer / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    ends = {f"{kind}_token_id": ids[names[f"{kind}_token"]] for kind in ("eos", "pad")}
    model = PairModel(recipe, **ends)
    fit(model, model.matrices, documents, model.loss, recipe, log)
    model.llama.to(torch.bfloat16).save_pretrained(out)
    for path in sorted(tokenizer.glob("*token*")):
        shutil.copy(path, out)
