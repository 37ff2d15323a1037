"""Weights, norms and attention of the lean decoder layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from workers.model.layer import RMSNorm, attend


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-2, 1e4])
def test_a_norm_is_the_stock_one_however_small_the_vector(scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = (scale * torch.randn(3, 24)).to(dtype)
    weight = torch.randn(24).to(dtype)
    wanted = functional.rms_norm(x.double(), (24,), weight.double(), 1e-6)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        RMSNorm(weight, 1e-6)(x).double(), wanted, rtol=tolerance, atol=1e-12
    )
    by_head = RMSNorm(torch.stack([weight, 2 * weight])[:, None], 1e-6)(x.expand(1, 2, 3, 24))
    pair = torch.stack([wanted, 2 * wanted])[None]
    torch.testing.assert_close(by_head.double(), pair, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_heads_that_share_keys_attend_as_if_each_had_its_own(
    transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel lays its answer out by tokens, as the memory-efficient one does."""
    kernel = functional.scaled_dot_product_attention

    def by_tokens(*args: Any, **options: Any) -> torch.Tensor:
        mixed: torch.Tensor = kernel(*args, **options)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2) if transposed else mixed

    monkeypatch.setattr(functional, "scaled_dot_product_attention", by_tokens)
    torch.manual_seed(1)
    queries = torch.randn(2, 6, 3, 8, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64)
    mask = torch.zeros(2, 1, 3, 5, dtype=torch.float64)
    mask[0, 0, 1, 2:] = mask[1, 0, 0, 3] = -torch.inf
    apart = [one.repeat_interleave(3, dim=1) for one in (keys, values)]
    repeated = mask.repeat(1, 1, 3, 1)
    torch.testing.assert_close(
        attend(queries, keys, values, repeated), attend(queries, *apart, mask)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cached", [5, 700])
def test_one_token_attends_alike_however_its_heads_are_laid_out(
    dtype: torch.dtype, cached: int
) -> None:
    torch.manual_seed(1)
    queries = torch.randn(2, 6, 1, 8).to(dtype)
    keys, values = torch.randn(2, 2, 2, cached, 8).to(dtype)
    each = [one.double().repeat_interleave(3, dim=1) for one in (keys, values)]
    wanted = functional.scaled_dot_product_attention(queries.double(), *each)
    found = attend(queries, keys, values, None)
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    lengths = cached, cached - 2
    mask = torch.zeros(2, 1, 1, cached, dtype=dtype)
    mask[1, ..., cached - 2 :] = -torch.inf
    apart = [
        [row[None, :, :length] for row, length in zip(one, lengths, strict=True)]
        for one in (keys, values)
    ]
    torch.testing.assert_close(
        attend(queries, *apart, mask), attend(queries, keys, values, mask),
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip
