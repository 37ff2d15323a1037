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
    assert "nh" in flags(made.data_ptr())  # no huge pages, whatever the system's default
    made[1] = 1
    assert [float(part.float().mean()) for part in made[:, :, 1:]] == [0, 1, 0, 0]


def flags(address: int) -> list[str]:
    """The kernel's flags of the memory at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"no memory at {address:x}")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
