"""The memory of the key/value cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from workers.model.cache import zeros

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_takes_the_pages_that_are_written(dtype: torch.dtype) -> None:
    before = resident()
    made = zeros((4, 64, 1 << 18), "cpu", dtype)
    assert (made.shape, made.dtype) == ((4, 64, 1 << 18), dtype)
    assert made.data_ptr() % PAGE == 0
    made[:, :, 0] = 2  # a token of each head
    assert resident() - before < made.nbytes // 8
    made[1] = 1
    assert [float(part.float().mean()) for part in made[:, :, 1:]] == [0, 1, 0, 0]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
