"""Fixtures that the laboratory's tests share with others."""

from tests.deploy.conftest import endless_file, served, tiny, tiny_file
from tests.workers.conftest import checkpoint, draft_checkpoint, prompts

__all__ = [
    "checkpoint",
    "draft_checkpoint",
    "endless_file",
    "prompts",
    "served",
    "tiny",
    "tiny_file",
]
