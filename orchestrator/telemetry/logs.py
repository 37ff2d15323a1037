"""Which request a line of the log is about: ids that every line of that request carries.

Lines hold ids, counts and names of errors: never a key, never the text of a question or answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("fields", default={})  # noqa: B039 never changed


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Lines logged inside, and by the tasks that begin inside, carry these fields too."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


class Fields(logging.Filter):
    """Puts the fields of the request at hand on every record that passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _FIELDS.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
