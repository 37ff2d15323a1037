"""Clients: what a local one needs of its workers."""

from __future__ import annotations

from deploy.evaluation.clients import PrefixCacheOwner
from workers.engine.worker import LocalWorker


def test_a_model_in_this_process_lets_its_prefix_cache_be_emptied() -> None:
    """By the method's name, which nothing else checks."""
    assert issubclass(LocalWorker, PrefixCacheOwner)
