from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray import serve


@pytest.fixture(autouse=True)
def replica_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name that Serve would have given to the replica."""
    context = SimpleNamespace(replica_tag="one")
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    return context.replica_tag
