"""The trained models respect the branch mask, have the stated loss, and learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from deploy.lab.pair.batches import TrainingDocument, collate
from deploy.lab.pair.training import PairModel, Recipe, Schedule, fit

RECIPE = Recipe(layers=2, width=64, vocab=128, tokens=40_000, warmup=5, flag_layer=1)


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


@torch.no_grad()
def logits(model: PairModel, document: TrainingDocument) -> torch.Tensor:
    states = model.hidden(collate([document], 48))[-1]
    made: torch.Tensor = model.llama.lm_head(states)[0, : len(document.tokens)]
    return made


def test_a_causal_document_is_read_as_transformers_reads_it() -> None:
    model, tokens = PairModel(RECIPE), list(range(40))
    with torch.no_grad():
        wanted = model.llama(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits(model, chain(tokens)), wanted, atol=1e-4, rtol=1e-4)


def test_a_branch_sees_the_chain_before_it_and_itself() -> None:
    """Chain a b | branch 1: c d | branch 2: e f | chain: g, against each path laid out alone."""
    model, n = PairModel(RECIPE), 7
    tree = TrainingDocument(
        [1, 2, 3, 4, 5, 6, 7], [-100] * n, [0.0] * n,
        [0, 1, 2, 3, 2, 3, 2], [0, 0, 1, 1, 2, 2, 0], [-1] * n,
    )  # fmt: skip
    ours = logits(model, tree)
    for path, at in (
        ((1, 2, 3, 4), (0, 1, 2, 3)),
        ((1, 2, 5, 6), (0, 1, 4, 5)),
        ((1, 2, 7), (0, 1, 6)),
    ):
        alone = logits(model, chain(list(path)))
        torch.testing.assert_close(ours[list(at)], alone, atol=1e-5, rtol=1e-5)


def test_loss_is_the_weighted_cross_entropy_and_the_flags() -> None:
    model, weights = PairModel(RECIPE), [0.0, 2.0, 1.0]
    doc = TrainingDocument([1, 2, 3], [2, 3, 4], weights, range(3), [0] * 3, [1, -1, 0])
    log_p = logits(model, doc).log_softmax(-1)
    mean = -sum(w * float(log_p[i, i + 2]) for i, w in enumerate(weights)) / sum(weights)
    # The flag head starts at zero.
    assert model.loss(collate([doc], 16)).item() == pytest.approx(mean + 0.3 * np.log(2), rel=1e-4)


def test_warm_up_plateau_and_decay_to_nothing() -> None:
    schedule = Schedule(tokens=1000, warmup=4)
    scales = [schedule.scale(step, 100 * step) for step in range(1, 11)]
    assert scales == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.8, 0.6, 0.4, 0.2, 0])


def test_training_learns() -> None:
    lines: list[str] = []
    model = PairModel(replace(RECIPE, batch_tokens=1024))
    fit(model, model.matrices, counting(), model.loss, model.recipe, lines.append)
    assert float(lines[-1].partition("%")[0]) >= 100
    assert float(lines[-1].split("loss ")[1].split()[0]) < 3  # at the end; uniform: 4.85
