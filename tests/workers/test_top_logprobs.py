"""How likely an end is, by the log-probabilities that a server shows."""

from __future__ import annotations

from collections.abc import Collection
from math import inf, log

import pytest
import torch

from workers.top_logprobs import stop_nll, whole_stop_nll


@pytest.mark.parametrize("shown", [1, 5, 20])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 5.0])
def test_the_likelihood_of_an_end_is_bounded(shown: int, sharpness: float) -> None:
    noise = torch.Generator().manual_seed(shown)
    logprobs = (sharpness * torch.randn(200, generator=noise, dtype=torch.float64)).log_softmax(0)
    best = logprobs.topk(shown)
    shown_logprobs = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    unlikely, likely = int(logprobs.argmin()), int(logprobs.argmax())
    both = float(logprobs[[unlikely, likely]].logsumexp(0))
    assert stop_nll(dict(enumerate(logprobs.tolist())), [unlikely, likely]) == pytest.approx(-both)
    assert stop_nll(shown_logprobs, [unlikely]) <= -float(logprobs[unlikely]) + 1e-9
    assert stop_nll(shown_logprobs, ()) == stop_nll({1: -inf, 5: -0.1}, {1}) == inf


async def test_ends_that_add_nothing_are_not_looked_up() -> None:
    asked: list[set[int]] = []

    async def lookup(allowed: Collection[int]) -> tuple[int, float]:
        asked.append(set(allowed))
        return min(allowed), -20.0

    nll = await whole_stop_nll({7: -1e-5, 3: -12.0}, {7, 8, 9}, lookup)
    assert (asked, nll) == ([], pytest.approx(1e-5))
    nll = await whole_stop_nll({3: -0.1, 4: -5.0}, {8, 9}, lookup)
    assert nll == pytest.approx(20 - log(2))
    assert asked == [{8, 9}, {9}]
