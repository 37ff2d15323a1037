"""Trains the embedded models from generated token trees, on a CPU.

The model is a lean twin of Hugging Face's `LlamaForCausalLM` (tied embeddings, no biases, RoPE,
RMSNorm, SwiGLU) and exports to it exactly. On a CPU it is fast by:

* bfloat16 matrix products; residual stream, norms, master weights, optimizer state in float32;
* `torch.compile` of one block that all layers share, which fuses the element-wise work;
* one flat vector of parameters: clipping and AdamW are single calls, and Muon orthogonalises
  matrices of one shape as a batch;
* a vocabulary head on the positions that carry a target alone.

The shipped weights came from two processes of one thread that summed their gradients.

Sources: Muon, https://kellerjordan.github.io/posts/muon/, with the learning-rate scale of
https://arxiv.org/abs/2502.16982 (that of `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`);
Llama, https://arxiv.org/abs/2302.13971.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from deploy.lab.pair.batches import Buckets, TrainingDocument, collate
from deploy.lab.pair.llama import Llama, Recipe
from deploy.lab.pair.muon import Optimizer
from deploy.lab.pair.progress import Progress


def train(
    recipe: Recipe,
    documents: Iterator[TrainingDocument],
    out: Path,
    *,
    tokenizer_dir: Path | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Train a model and export it to `out`."""
    torch.manual_seed(recipe.seed)
    model, progress = Llama(recipe, torch.bfloat16), Progress(recipe, log)
    optimizer, buckets = Optimizer(model), Buckets(documents, recipe.batch_tokens)
    while progress.share < 1:
        batch = collate(*buckets.take(), torch.bfloat16)
        lm, flag = model.losses(batch)
        lm = lm / batch.weights.sum().clamp(min=1e-6)
        loss = lm + flag * (recipe.flag_weight / max(len(batch.flags), 1))
        leaves = torch.autograd.grad(loss, model.leaves, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([leaf.flatten().float() for leaf in leaves])
        optimizer.step(gradient, progress.advance(batch.count))
        progress.report(lm.item())
    model.export(out, tokenizer_dir)
