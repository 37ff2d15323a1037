"""Baton's lines in Ray Serve's log, by the deployment file's `logging_config`.

With `logging_config: {encoding: JSON}` every line is an object with its replica and the ids of its
request; `log_level` and `logs_dir` apply to Baton's lines as to Serve's.
"""

from __future__ import annotations

import logging

from orchestrator.telemetry.logs import Fields

OURS = ("orchestrator", "policies", "workers", "deploy")
SERVE = "ray.serve"


class _ToServe(logging.Handler):
    """Passes a record to Serve's logger, with the handlers that it then has."""

    def emit(self, record: logging.LogRecord) -> None:
        serve = logging.getLogger(SERVE)
        if serve.isEnabledFor(record.levelno):
            serve.handle(record)


def join_serve() -> None:
    """Send this process's log lines to Serve's handlers; call it in a replica."""
    handler = _ToServe()
    handler.addFilter(Fields())
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.DEBUG)  # Serve's level decides
