"""Host values on the device that computes with them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

READ_PINNED: Final = ("cuda",)
"""Devices that read pinned memory while this process continues; a plain copy waits for all work
that was given to them before."""


def on_device(values: Any, device: torch.device) -> Tensor:
    """Return numbers, or a tensor of the CPU, as a tensor of `device`.

    Torch keeps pinned memory, and uses it again only after the device has read it.
    """
    host = torch.as_tensor(values)
    if device.type not in READ_PINNED:
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
