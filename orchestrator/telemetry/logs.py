"""Adds a request's ids to all of its log lines.

Lines have ids, counts and names of errors: never a key, never the text of a question or answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("fields", default={})  # noqa: B039 never changed


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Add these fields to lines logged inside, and by tasks that begin inside."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


class Fields(logging.Filter):
    """Sets the current request's fields on every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _FIELDS.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
