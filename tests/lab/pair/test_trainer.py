"""The training twin equals Hugging Face's Llama, respects the branch mask, and learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from deploy.lab.pair.batches import TrainingDocument, collate
from deploy.lab.pair.llama import Llama, Recipe
from deploy.lab.pair.muon import Optimizer
from deploy.lab.pair.trainer import train

RECIPE = Recipe(layers=2, width=64, vocab=128, tokens=40_000, warmup=5, flag_layer=1, compile=False)


def chain(tokens: list[int]) -> TrainingDocument:
    """A causal document: each token predicts the next."""
    n = len(tokens)
    return TrainingDocument(tokens, [*tokens[1:], -100], [1.0] * n, range(n), [0] * n, [-1] * n)


def counting() -> Iterator[TrainingDocument]:
    """Documents of one length that count up; the flag tells which tokens are even."""
    rng = np.random.default_rng(0)
    while True:
        tokens = (rng.integers(128) + np.arange(48)) % 128
        n = len(tokens)
        targets = np.append(tokens[1:], -100)
        yield TrainingDocument(tokens, targets, np.ones(n), np.arange(n), np.zeros(n), tokens % 2)


def model(recipe: Recipe = RECIPE) -> Llama:
    """A float32 twin with norms that are not all one."""
    twin = Llama(recipe, torch.float32)
    torch.manual_seed(1)
    twin.norms += 0.1 * torch.randn_like(twin.norms)
    twin.flat[: twin.matrices] *= 5  # so that attention is far from uniform
    twin.refresh()
    return twin


def test_logits_equal_hugging_face(tmp_path: Path) -> None:
    twin = model()
    twin.flat.copy_(twin.flat.bfloat16())  # the export is bfloat16
    twin.refresh()
    twin.export(tmp_path)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.arange(40).tolist()
    ours = twin.logits(collate([chain(tokens)], 48, torch.float32))[0, :40]
    with torch.no_grad():
        theirs = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_branch_sees_the_chain_before_it_and_itself() -> None:
    """Chain a b | branch 1: c d | branch 2: e f | chain: g, against each path laid out alone."""
    twin = model()
    n = 7
    tree = TrainingDocument(
        [1, 2, 3, 4, 5, 6, 7],
        [-100] * n,
        [0.0] * n,
        [0, 1, 2, 3, 2, 3, 2],
        [0, 0, 1, 1, 2, 2, 0],
        [-1] * n,
    )
    ours = twin.logits(collate([tree], 16, torch.float32))[0]
    for path, at in (
        ((1, 2, 3, 4), (0, 1, 2, 3)),
        ((1, 2, 5, 6), (0, 1, 4, 5)),
        ((1, 2, 7), (0, 1, 6)),
    ):
        alone = twin.logits(collate([chain(list(path))], 16, torch.float32))[0]
        torch.testing.assert_close(ours[list(at)], alone[: len(path)], atol=1e-5, rtol=1e-5)


def test_loss_is_the_weighted_cross_entropy() -> None:
    twin = model()
    weights = [0.0, 2.0, 1.0]
    doc = TrainingDocument([1, 2, 3], [2, 3, 4], weights, range(3), [0] * 3, [1, -1, 0])
    batch = collate([doc], 16, torch.float32)
    lm, flag = twin.losses(batch)
    log_p = twin.logits(batch)[0, :3].log_softmax(-1)
    expected = -sum(w * log_p[i, i + 2] for i, w in enumerate(weights))
    torch.testing.assert_close(lm, torch.as_tensor(expected))
    torch.testing.assert_close(flag.item(), 2 * np.log(2))  # the flag head starts at zero


def test_the_step_is_torch_muon() -> None:
    twin = model()
    matrix, big = twin.attention[0, 1].clone().requires_grad_(), twin.mlp[1, 0].clone()
    big.requires_grad_()
    reference = torch.optim.Muon(
        [matrix, big], lr=6e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    optimizer = Optimizer(twin)
    gradient = torch.randn_like(twin.flat)
    gradient /= 2 * gradient.norm()  # below the clip
    start, d = twin.attention[0, 1].clone(), twin.recipe.width
    at = twin.attention.numel() + 3 * big.numel()
    for _ in range(2):
        matrix.grad = gradient[d * d : 2 * d * d].view(d, d).clone()
        big.grad = gradient[at : at + big.numel()].view_as(big).clone()
        reference.step()
        optimizer.step(gradient.clone(), 1.0)
    moved = (matrix - start).norm()
    assert (twin.attention[0, 1] - matrix).norm() < 0.02 * moved  # bfloat16 iterations
    assert (twin.mlp[1, 0] - big).norm() < 0.02 * moved


def test_training_learns_and_exports(tmp_path: Path) -> None:
    lines: list[str] = []
    recipe = replace(RECIPE, batch_tokens=1024)
    train(recipe, counting(), tmp_path, log=lines.append)
    assert float(lines[-1].split("loss ")[1].split()[0]) < 3  # at the end; uniform: 4.85
    assert LlamaForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16
