"""Train tiny Llama models fast on two CPU cores (or one GPU), from generated token trees.

The model is a lean twin of Hugging Face's ``LlamaForCausalLM`` (tied embeddings, no biases, RoPE,
RMSNorm, SwiGLU), and exports to it exactly. What makes it fast on a CPU, in order of gain:

* two single-threaded processes that sum gradients, rather than one process with two threads;
* bfloat16 matrix products (float32 residual stream, norms, master weights and optimizer state);
* ``torch.compile`` of one block, shared by all layers: it fuses the element-wise work;
* all parameters live in one flat vector, so that gradient sum, clipping and AdamW are single
  calls, and Muon orthogonalises same-shape matrices as one batch, each process its own share;
* the vocabulary head runs only on positions that carry a target.

Sources: Muon, https://kellerjordan.github.io/posts/muon/, with the learning-rate scale of
https://arxiv.org/abs/2502.16982 (same as ``torch.optim.Muon(adjust_lr_fn="match_rms_adamw")``);
Llama, https://arxiv.org/abs/2302.13971.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from deploy.lab.pair.batches import LENGTHS, Buckets, DocumentSource, collate
from deploy.lab.pair.llama import Llama, Recipe
from deploy.lab.pair.muon import Optimizer
from deploy.lab.pair.progress import Progress, load_state, save_state


@dataclass(frozen=True)
class TrainingRun:
    """The arguments of ``train``, as they travel to the other processes."""

    recipe: Recipe
    documents: DocumentSource
    out: Path
    tokenizer_dir: Path | None
    resume: bool
    init_from: Path | None
    world: int
    store: str


def work(rank: int, run: TrainingRun, log: Callable[[str], None] | None) -> None:
    """The loop of one process. Rank 0 also logs, checkpoints and exports."""
    recipe, out, world = run.recipe, run.out, run.world
    progress = Progress(recipe)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=run.store, rank=rank, world_size=world)
    model = Llama(recipe, torch.bfloat16, device)
    optimizer = Optimizer(model, rank, world)
    if run.resume and (state := load_state(out, device)) is not None:
        model.flat.copy_(state["flat"])
        model.refresh()
        optimizer.momentum.copy_(state["momentum"])
        optimizer.adam.load_state_dict(state["adam"])
        progress.resume(state)
    elif run.init_from is not None:
        model.load(run.init_from)
    # A resumed run draws new documents.
    buckets = Buckets(
        run.documents(rank, world, recipe.seed + progress.step), recipe.batch_tokens // world
    )
    fullness = buckets.fill()
    sums = np.zeros(5)

    def save() -> None:
        state = {"flat": model.flat, "momentum": optimizer.momentum}
        save_state(out, progress.state() | state | {"adam": optimizer.adam.state_dict()})
        model.export(out, run.tokenizer_dir)

    while not progress.over:
        # All ranks take the same length (the fullest queue of the last step's sum): equal work.
        # At step 0 each may choose its own.
        bucket = int(np.argmax(fullness))
        batch = collate(buckets.take(bucket), LENGTHS[bucket], torch.bfloat16, device)
        share = [
            progress.elapsed if rank == 0 else 0.0,
            float(batch.weights.sum()),
            len(batch.flags),
        ]
        total = torch.tensor([*share, batch.count, *buckets.fill()], dtype=torch.float64)
        pending = dist.all_reduce(total, async_op=True) if world > 1 else None
        lm, flag = model.losses(batch)
        if pending is not None:
            pending.wait()
        elapsed, weight, flags, count, *fullness = total.tolist()
        loss = lm / max(weight, 1e-6) + flag * (recipe.flag_weight / max(flags, 1))
        leaves = torch.autograd.grad(loss, model.leaves, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([g.flatten().float() for g in leaves])
        if world > 1:
            dist.all_reduce(gradient)
        optimizer.step(gradient, progress.advance(int(count), elapsed))
        if rank:
            continue
        # Rank 0's share of the losses estimates the whole.
        sums += (lm.item(), share[1], flag.item(), share[2], count)
        if log is not None and (passed := progress.log_due()) is not None:
            lm_sum, weight, flag_sum, flags, count = sums.tolist()
            log(
                progress.log_line(
                    f"{count / passed:.0f}/s lm {lm_sum / max(weight, 1e-6):.4f}"
                    f" flag {flag_sum / max(flags, 1):.4f}"
                )
            )
            sums[:] = 0
        if progress.checkpoint_due():
            save()
    if world > 1:
        dist.destroy_process_group()


def train(
    recipe: Recipe,
    documents: DocumentSource,
    out: Path,
    tokenizer_dir: Path | None = None,
    resume: bool = False,
    init_from: Path | None = None,
    log: Callable[[str], None] | None = print,
) -> Path:
    """Train, and return ``out``: a Hugging Face checkpoint plus ``state.pt`` to resume from.

    ``documents(rank, world, seed)`` must be picklable and give an endless iterator. Rank 0 runs in
    this process; the others are spawned, so a script needs its ``if __name__ == "__main__"``.
    """
    world = 1 if torch.cuda.is_available() else recipe.processes
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        run = TrainingRun(recipe, documents, out, tokenizer_dir, resume, init_from, world, store)
        context = torch.multiprocessing.get_context("spawn")
        others = [
            context.Process(target=work, args=(rank, run, None), daemon=True)
            for rank in range(1, world)
        ]
        for other in others:
            other.start()
        try:
            work(0, run, log)
        finally:
            for other in others:
                other.join(5)
                other.terminate()
            torch.set_num_threads(threads)
    return out
