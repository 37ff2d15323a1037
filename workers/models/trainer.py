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
Llama, https://arxiv.org/abs/2302.13971; the trapezoid schedule, https://arxiv.org/abs/2405.18392.
"""

from __future__ import annotations

import json
import math
import operator
import os
import shutil
import tempfile
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

HEAD_DIM = 32
ROPE_THETA = 10000.0
EPS = 1e-6
# Rows are padded to one of these lengths: few shapes, at most ~10 % padding.
LENGTHS = (*range(32, 129, 16), *range(160, 321, 32), *range(384, 1025, 128))

Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Document:
    """One training example: a token tree in sequence order. All fields have the same length.

    Branch 0 is the main chain; token i attends to j iff j <= i and j is on the main chain or on
    i's own branch. ``positions`` are RoPE positions. ``targets[i]`` is what token i predicts (-100:
    nothing) with loss weight ``weights[i]``. ``flags[i]`` is an auxiliary label: 0, 1, or -1: none.
    """

    tokens: Numbers
    targets: Numbers
    weights: Numbers
    positions: Numbers
    branches: Numbers
    flags: Numbers


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a run. ``ffn`` 0 means 8/3 of the width, rounded to 32."""

    layers: int
    width: int
    tokens: int  # total over the run, for the schedule
    minutes: float | None = None  # wall-clock cap, compilation included
    ffn: int = 0
    heads: int = 0  # 0: width / 32
    vocab: int = 1024
    context: int = 1024  # only written to config.json
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    weight_decay: float = 0.1  # of the matrices
    clip: float = 1.0
    warmup: int = 40  # steps
    decay: float = 0.5  # last share of progress, linear to 0
    batch_tokens: int = 4096  # over all processes, padding included
    flag_layer: int | None = None  # the flag head reads the residual stream after that many blocks
    flag_weight: float = 0.3
    seed: int = 0
    processes: int = 2  # on a CPU; a GPU takes one
    threads: int = 1  # per process
    compile: bool = True
    checkpoint_minutes: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ffn", self.ffn or 32 * round(self.width / 12))
        object.__setattr__(self, "heads", self.heads or self.width // HEAD_DIM)


Documents = Callable[[int, int, int], Iterator[Document]]


@dataclass(slots=True)
class Batch:
    """B rows padded to length T. N positions carry a target, M a flag."""

    count: int  # real tokens
    tokens: Tensor  # (B, T) int64
    bias: Tensor  # (B, 1, T, T) 0 where attention is allowed, else -inf
    cos: Tensor  # (B, T, 1, HEAD_DIM / 2) float32
    sin: Tensor
    at: Tensor  # (N,) int64, into the flattened (B T) positions
    targets: Tensor  # (N,) int64
    weights: Tensor  # (N,) float32
    flag_at: Tensor  # (M,) int64
    flags: Tensor  # (M,) float32


def collate(documents: Sequence[Document], length: int, dtype: torch.dtype, device: str) -> Batch:
    """Pad documents to (B, length). A padded position attends causally and has no loss."""
    ids = np.zeros((5, len(documents), length), np.int64)
    tokens, targets, positions, branches, flags = ids
    weights = np.zeros((len(documents), length), np.float32)
    targets[:], flags[:] = -100, -1
    for row, doc in enumerate(documents):
        n = len(doc.tokens)
        ids[:, row, :n] = (doc.tokens, doc.targets, doc.positions, doc.branches, doc.flags)
        weights[row, :n] = doc.weights
    at, flag_at = np.flatnonzero(targets >= 0), np.flatnonzero(flags >= 0)
    key = branches[:, None, :]
    allowed = ((key == 0) | (key == branches[:, :, None])) & np.tri(length, dtype=bool)
    bias = np.where(allowed, np.float32(0), np.float32(-np.inf))[:, None]
    inverse = ROPE_THETA ** (-np.arange(0, HEAD_DIM, 2, dtype=np.float64) / HEAD_DIM)
    angle = (positions[:, :, None, None] * inverse).astype(np.float32)
    flagged = flags.ravel()[flag_at].astype(np.float32)
    masked = (targets.ravel()[at], weights.ravel()[at], flag_at, flagged)
    arrays: tuple[NDArray[Any], ...] = (tokens, bias, np.cos(angle), np.sin(angle), at, *masked)
    tensors = [torch.from_numpy(array).to(device) for array in arrays]
    tensors[1] = tensors[1].to(dtype)
    return Batch(sum(len(doc.tokens) for doc in documents), *tensors)


class Buckets:
    """Queues of documents by padded length, so that a batch holds rows of similar length."""

    def __init__(self, source: Iterator[Document], batch_tokens: int) -> None:
        self.source = source
        self.rows = [max(1, batch_tokens // length) for length in LENGTHS]
        self.queues: list[deque[Document]] = [deque() for _ in LENGTHS]

    def pull(self) -> None:
        doc = next(self.source)
        self.queues[bisect_left(LENGTHS, len(doc.tokens))].append(doc)

    def fill(self) -> list[float]:
        """Hold as many batches as there are queues, so that one is full; batches per queue."""
        while sum(map(operator.truediv, map(len, self.queues), self.rows)) < len(LENGTHS):
            self.pull()
        return [len(queue) / rows for queue, rows in zip(self.queues, self.rows, strict=True)]

    def take(self, bucket: int) -> list[Document]:
        queue, rows = self.queues[bucket], self.rows[bucket]
        while len(queue) < rows:  # full on average over ranks, perhaps not here
            self.pull()
        return [queue.popleft() for _ in range(rows)]


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

    ``down`` is stored transposed, (f, d), so that all three feed-forward matrices have one shape.
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

    The first ``matrices`` numbers are Muon's; they are trained through a copy in ``dtype``.
    """

    def __init__(self, recipe: Recipe, dtype: torch.dtype, device: str) -> None:
        r, d, f = recipe, recipe.width, recipe.ffn
        self.recipe, self.dtype, self.device = recipe, dtype, device
        sizes = (r.layers * 4 * d * d, r.layers * 3 * f * d, r.vocab * d, (2 * r.layers + 1) * d)
        self.matrices = sizes[0] + sizes[1]
        generator = torch.Generator().manual_seed(r.seed)
        flat = torch.randn(sum(sizes) + d + 1, generator=generator) * 0.02
        self.flat = flat.to(device)
        self.attention, self.mlp, embed, norms, flag = self.flat.split((*sizes, d + 1))
        self.attention = self.attention.view(r.layers, 4, d, d)
        self.mlp = self.mlp.view(r.layers, 3, f, d)
        # Residual outputs start small in proportion to depth (GPT-2), norms at 1, flag head at 0.
        self.attention[:, 3] /= math.sqrt(2 * r.layers)
        self.mlp[:, 2] /= math.sqrt(2 * r.layers)
        norms.fill_(1)
        flag.zero_()
        self.embed, self.norms = embed.view(r.vocab, d), norms.view(-1, d)
        # Leaves of the autograd graph, in flat order. Float32 ones share memory with ``flat``.
        self.half = torch.empty(self.matrices, dtype=dtype, device=device)
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
        if r.compile and (device != "cpu" or shutil.which(os.environ.get("CXX", "g++"))):
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
        flag_loss = torch.zeros((), device=self.device)
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
        """Hugging Face's parameter names, as views of ``flat``: the map for export and import."""
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
        """Write ``out`` as a bfloat16 Hugging Face checkpoint."""
        from safetensors.torch import save_file
        from transformers import LlamaConfig

        r = self.recipe
        out.mkdir(parents=True, exist_ok=True)
        config = LlamaConfig(
            vocab_size=r.vocab,
            hidden_size=r.width,
            intermediate_size=r.ffn,
            num_hidden_layers=r.layers,
            num_attention_heads=r.heads,
            num_key_value_heads=r.heads,
            head_dim=HEAD_DIM,
            max_position_embeddings=r.context,
            rms_norm_eps=EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            tie_word_embeddings=True,
            dtype="bfloat16",
            architectures=["LlamaForCausalLM"],
            bos_token_id=None,
            **_control_ids(tokenizer_dir),
        )
        config.save_pretrained(out)
        state = {k: v.to("cpu", torch.bfloat16).contiguous() for k, v in self.names().items()}
        save_file(state, out / "model.safetensors.new", {"format": "pt"})
        os.replace(out / "model.safetensors.new", out / "model.safetensors")
        for path in sorted(tokenizer_dir.glob("*token*")) if tokenizer_dir else []:
            if path.parent != out:
                shutil.copy(path, out)

    def load(self, checkpoint: Path) -> None:
        """Start from an exported checkpoint of the same shape."""
        from safetensors.torch import load_file

        state = load_file(checkpoint / "model.safetensors")
        for name, view in self.names().items():
            view.copy_(state[name])
        self.refresh()


def _control_ids(tokenizer_dir: Path | None) -> dict[str, int]:
    """`eos_token_id` and `pad_token_id` for config.json, as the tokenizer's files have them."""
    if tokenizer_dir is None:
        return {}
    names = json.loads((tokenizer_dir / "tokenizer_config.json").read_text())
    added = json.loads((tokenizer_dir / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    return {f"{kind}_token_id": ids[names[f"{kind}_token"]] for kind in ("eos", "pad")}


def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """Muon's Newton-Schulz iteration on a batch of matrices (n, a, b), in bfloat16."""
    x = g.bfloat16()
    if x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.mT if g.shape[1] > g.shape[2] else x


class Optimizer:
    """Muon on the matrices, AdamW on the rest. Every rank holds the whole state."""

    def __init__(self, model: Llama, rank: int, world: int) -> None:
        self.model, self.rank, self.world = model, rank, world
        self.momentum = torch.zeros_like(model.flat[: model.matrices])
        self.rest = model.flat[model.matrices :]
        r = model.recipe
        self.adam = torch.optim.AdamW(
            [self.rest], lr=r.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, gradient: Tensor, scale: float) -> None:
        """Update from the global gradient, (flat,). ``scale`` multiplies both learning rates."""
        model, r = self.model, self.model.recipe
        gradient *= (r.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
        matrices, self.rest.grad = gradient.split((model.matrices, len(self.rest)))
        self.adam.param_groups[0]["lr"] = r.adam_lr * scale
        self.adam.step()
        self.momentum.lerp_(matrices, 0.05)
        begin = 0
        model.flat[: model.matrices] *= 1 - r.muon_lr * scale * r.weight_decay
        for stack in (model.attention, model.mlp):
            shape = stack.flatten(0, 1).shape
            span = slice(begin, begin + stack.numel())
            begin = span.stop
            # Each rank orthogonalises its share of the matrices, then sends it to the others.
            update = torch.empty(shape, dtype=torch.bfloat16, device=stack.device)
            cuts = [shape[0] * i // self.world for i in range(self.world + 1)]
            mine = slice(cuts[self.rank], cuts[self.rank + 1])
            nesterov = (
                matrices[span].view(shape)[mine].lerp(self.momentum[span].view(shape)[mine], 0.95)
            )
            update[mine] = orthogonal(nesterov)
            for source in range(self.world if self.world > 1 else 0):
                part = update[cuts[source] : cuts[source + 1]]
                dist.broadcast(part.view(torch.uint8), source)
            lr = r.muon_lr * scale * 0.2 * math.sqrt(max(shape[1:]))
            stack.view(shape).add_(update, alpha=-lr)
        model.refresh()


@dataclass(frozen=True)
class Job:
    """The arguments of ``train``, as they travel to the other processes."""

    recipe: Recipe
    documents: Documents
    out: Path
    tokenizer_dir: Path | None
    resume: bool
    init_from: Path | None
    world: int
    store: str


def work(rank: int, job: Job, log: Callable[[str], None] | None) -> None:
    """The loop of one process. Rank 0 also logs, checkpoints and exports."""
    recipe, out, world = job.recipe, job.out, job.world
    start = saved_at = logged_at = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=job.store, rank=rank, world_size=world)
    model = Llama(recipe, torch.bfloat16, device)
    optimizer = Optimizer(model, rank, world)
    tokens, step, before = 0, 0, 0.0
    state_path = out / "state.pt"
    if job.resume and state_path.exists():
        state = torch.load(state_path, map_location=device, weights_only=True)
        model.flat.copy_(state["flat"])
        model.refresh()
        optimizer.momentum.copy_(state["momentum"])
        optimizer.adam.load_state_dict(state["adam"])
        tokens, step, before = state["tokens"], state["step"], state["elapsed"]
    elif job.init_from is not None:
        model.load(job.init_from)
    # A resumed run draws new documents, not those it has already seen.
    buckets = Buckets(job.documents(rank, world, recipe.seed + step), recipe.batch_tokens // world)
    progress, elapsed, fullness = 0.0, before, buckets.fill()
    sums = np.zeros(5)

    def save() -> None:
        out.mkdir(parents=True, exist_ok=True)
        state = {"flat": model.flat, "momentum": optimizer.momentum, "tokens": tokens, "step": step}
        state |= {"adam": optimizer.adam.state_dict(), "elapsed": elapsed}
        torch.save(state, out / "state.pt.new")
        os.replace(out / "state.pt.new", state_path)
        model.export(out, job.tokenizer_dir)

    while progress < 1:
        # All ranks take the same length (the fullest queue of the last step's sum): equal work.
        # At step 0 each may choose its own.
        bucket = int(np.argmax(fullness))
        batch = collate(buckets.take(bucket), LENGTHS[bucket], torch.bfloat16, device)
        elapsed = before + time.monotonic() - start
        share = [elapsed if rank == 0 else 0.0, float(batch.weights.sum()), len(batch.flags)]
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
        tokens, step = tokens + int(count), step + 1
        progress = tokens / recipe.tokens
        if recipe.minutes is not None:
            progress = max(progress, elapsed / 60 / recipe.minutes)
        scale = min(1.0, step / recipe.warmup) * min(1.0, max(0.0, 1 - progress) / recipe.decay)
        optimizer.step(gradient, scale)
        if rank:
            continue
        # Rank 0's share of the losses estimates the whole.
        sums += (lm.item(), share[1], flag.item(), share[2], count)
        now = time.monotonic()
        if log is not None and (now - logged_at >= 10 or progress >= 1):
            lm_sum, weight, flag_sum, flags, count = sums.tolist()
            left = elapsed * (1 - progress) / max(progress, 1e-9)
            log(
                f"{progress:6.1%} step {step} {tokens / 1e6:.2f}M tokens"
                f" {count / (now - logged_at):.0f}/s lm {lm_sum / max(weight, 1e-6):.4f}"
                f" flag {flag_sum / max(flags, 1):.4f} lr x{scale:.3f} left {left:.0f} s"
            )
            sums[:] = 0
            logged_at = now
        if progress >= 1 or now - saved_at >= 60 * recipe.checkpoint_minutes:
            save()
            saved_at = time.monotonic()
    if world > 1:
        dist.destroy_process_group()


def train(
    recipe: Recipe,
    documents: Documents,
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
        job = Job(recipe, documents, out, tokenizer_dir, resume, init_from, world, store)
        context = torch.multiprocessing.get_context("spawn")
        others = [
            context.Process(target=work, args=(rank, job, None), daemon=True)
            for rank in range(1, world)
        ]
        for other in others:
            other.start()
        try:
            work(0, job, log)
        finally:
            for other in others:
                other.join(5)
                other.terminate()
            torch.set_num_threads(threads)
    return out
