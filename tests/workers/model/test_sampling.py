"""Temperature, top-k and top-p: as transformers has them, and over a vocabulary of real size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.types import Sampling
from workers.model.sampling import NEAR, warp

VOCABULARY = 4000
SPREADS = {"sharp": 8.0, "usual": 3.0, "flat": 0.02}  # flat: all are needed to reach top_p
SAMPLINGS = [
    Sampling(0.7, 0.8, 20),
    Sampling(1.0, 0.95),
    Sampling(0.6, 0.999),
    Sampling(1.0, 1.0, 1),
    Sampling(1.0, 1.0, NEAR),
    Sampling(1.0, 0.9, NEAR + 1),
    Sampling(1.3, 1.0, VOCABULARY + 1),
    Sampling(1.0, 1e-9),
    Sampling(2.0),
]


@pytest.mark.parametrize(
    "warm", [Sampling(0.7), Sampling(1.0, 0.8), Sampling(1.0, 1.0, 5), Sampling(2.0, 0.7, 9)]
)
def test_warping_is_that_of_transformers(warm: Sampling) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits = torch.randn(6, 40) * 3
    expected = TemperatureLogitsWarper(warm.temperature)(None, logits)
    if warm.top_k:
        expected = TopKLogitsWarper(warm.top_k)(None, expected)
    if warm.top_p < 1:
        expected = TopPLogitsWarper(warm.top_p)(None, expected)
    mixed = warp(logits[:, None], [warm] * 5 + [Sampling(1.0)])[:, 0]
    assert torch.allclose(mixed[:5], expected.softmax(-1)[:5], atol=1e-6)
    assert torch.allclose(mixed[5], logits[5].softmax(-1), atol=1e-6)


def expected(logits: Tensor, sampling: Sampling) -> np.ndarray:
    """The law in float64: the likeliest tokens, of equal ones those with the lower ids."""
    scaled = logits.numpy().astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")[: sampling.top_k or None]
    probs = np.exp(scaled[order] - scaled[order[0]])
    probs /= probs.sum()
    if sampling.top_p < 1:
        enough = np.searchsorted(probs.cumsum(), sampling.top_p) + 1
        order, probs = order[:enough], probs[:enough] / probs[:enough].sum()
    whole = np.zeros(len(scaled))
    whole[order] = probs
    return whole


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_of_a_large_vocabulary_the_likeliest_are_kept(spread: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(len(SAMPLINGS), 2, VOCABULARY) * spread
    for own, sampling, row in zip(warp(logits, SAMPLINGS), SAMPLINGS, logits, strict=True):
        for probs, item in zip(own, row, strict=True):
            law = expected(item, sampling)
            # Of many alike, rounding in 32 bits may take one more or less at the edge of top_p.
            edge = 1 if spread == SPREADS["flat"] and sampling.top_p < 1 else 0
            assert ((probs.numpy() > 0) != (law > 0)).sum() <= edge
            assert np.allclose(probs.numpy(), law, rtol=2e-3, atol=0 if not edge else law.max())


@pytest.mark.parametrize("top_k", [5, NEAR - 1, NEAR, NEAR + 1, NEAR + 5])
@pytest.mark.parametrize("equal", [2, 40, 3 * NEAR])
def test_of_equal_ones_the_lower_ids_are_kept(top_k: int, equal: int) -> None:
    """As 16 bits have them: the edge lies within a run of equal logits."""
    torch.manual_seed(2)
    logits = torch.randn(VOCABULARY) - 8
    order = torch.randperm(VOCABULARY)
    above = order[: max(0, top_k - equal // 2)]
    logits[above] = 10 + torch.rand(len(above))
    logits[order[len(above) : len(above) + equal]] = 9.0
    for sampling in (Sampling(1.0, 1.0, top_k), Sampling(1.0, 1 - 1e-4, top_k)):
        probs = warp(logits[None, None], [sampling])[0, 0].numpy()
        assert np.array_equal(probs > 0, expected(logits, sampling) > 0)


def test_the_edge_of_top_p_may_lie_among_equal_ones() -> None:
    logits = torch.full((VOCABULARY,), -20.0)
    logits[torch.arange(3, 2403, 3)] = 5.0  # 800, of which 0.3 are more than the nearest
    probs = warp(logits[None, None], [Sampling(1.0, 0.4)])[0, 0]
    kept = probs.nonzero().flatten().tolist()
    assert len(kept) in (320, 321)
    assert kept == list(range(3, 3 + 3 * len(kept), 3))


def test_low_temperatures_lose_no_precision() -> None:
    torch.manual_seed(4)
    for temperature in (0.01, 0.05, 0.7):
        logits = torch.full((20, 1, VOCABULARY), -10.0)
        logits[:, 0, :200] = 25 + temperature * torch.rand(20, 200)
        sampling = Sampling(temperature, 0.9)
        for probs, item in zip(warp(logits, [sampling] * 20), logits, strict=True):
            assert np.array_equal(probs[0].numpy() > 0, expected(item[0], sampling) > 0)


def test_what_a_grammar_forbids_stays_forbidden() -> None:
    logits = torch.full((VOCABULARY,), -torch.inf)
    logits[[7, 3000]] = torch.tensor([1.0, 2.0])
    for sampling in SAMPLINGS:
        probs = warp(logits[None, None], [sampling])[0, 0]
        assert set(probs.nonzero().flatten().tolist()) <= {7, 3000}
        assert float(probs.sum()) == pytest.approx(1)


def test_nan_stays_nan() -> None:
    """Callers look at the logits; a distribution that hid a NaN would be drawn from."""
    logits = torch.randn(2, 1, VOCABULARY)
    logits[0, 0, 9] = torch.nan
    for sampling in SAMPLINGS:
        probs = warp(logits, [sampling, sampling])
        assert bool(probs[0].isnan().any())
        assert not bool(probs[1].isnan().any())


def test_a_row_is_cut_alike_beside_others() -> None:
    """At the very edge of top_p, over a vocabulary that several threads share."""
    torch.manual_seed(0)
    logits = torch.randn(16, 1, 50_000) * 2
    logits[:, 0, :60] += 9
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for row in range(16):
            masses = logits[row, 0].sort(descending=True).values.softmax(-1).cumsum(-1)
            sampling = Sampling(1.0, float(masses[1]))
            together = warp(logits, [sampling] * 16)
            assert torch.equal(warp(logits[row : row + 1], [sampling])[0], together[row])
    finally:
        torch.set_num_threads(threads)
