"""What a process sets before it imports torch."""

from __future__ import annotations

import os

import pytest

from deploy.launch.environment import prepare_torch

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, ("PASSIVE", "1000")),
        ({"GOMP_SPINCOUNT": "5"}, ("PASSIVE", "5")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
    ],
)
def test_threads_sleep_soon_unless_the_user_says_otherwise(
    given: dict[str, str], wanted: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    monkeypatch.setattr(os, "environ", environment | given)
    for _ in range(2):  # a child process inherits what the first one has set
        prepare_torch()
        assert tuple(map(os.environ.get, WAITING)) == wanted
