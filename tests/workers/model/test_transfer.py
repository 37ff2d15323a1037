"""What a pass takes from the host: on a GPU nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.workers.conftest import make_model, network_of
from workers.model import transfer
from workers.model.target import Target
from workers.model.tree import Tree


class Copies(TorchFunctionMode):
    """The copies of host values to a device: whether each is from pinned memory and not waited
    for."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.pinned: list[Any] = []
        self.free: list[bool] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.Tensor.pin_memory:  # a CPU has none
            self.pinned.append(args[0])
            return args[0]
        made = func(*args, **options)
        if isinstance(made, torch.Tensor) and made.device == self.device:
            if func is torch.tensor or func is torch.as_tensor:
                self.free.append(False)
            elif func is torch.Tensor.to and args[0].device != self.device:
                pinned = any(args[0] is one for one in self.pinned)
                self.free.append(pinned and options.get("non_blocking", False))
        return made


@pytest.mark.parametrize(
    ("trees", "copies"),
    [
        ([Tree.chain([5])], 1),
        ([Tree.chain([5]), Tree.chain([6, 7, 8])], 3),
        ([Tree([5, 6, 7], [-1, 0, 0]), Tree.chain([6])], 6),
    ],
    ids=["one token", "two rows", "a tree"],
)
def test_no_input_of_a_pass_is_waited_for(
    trees: list[Tree], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's device without memory stands in for a GPU; to read anything back from it fails."""
    with torch.device("meta"):
        model = make_model("qwen2")
    target = Target(network_of(model), slots=2, max_len=64)
    monkeypatch.setattr(transfer, "READ_PINNED", ("meta",))
    with Copies("meta") as seen, torch.inference_mode():
        logits = target.forward(range(len(trees)), trees).logits
    assert logits.shape == (len(trees), max(map(len, trees)), 400)
    assert seen.free == [True] * copies
