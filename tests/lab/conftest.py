"""Fixtures that the laboratory's tests share with others."""

from tests.deploy.conftest import tiny, tiny_file

__all__ = ["tiny", "tiny_file"]
