"""Log lines of ours in Ray Serve's log, as the deployment file's `logging_config` wants them.

`logging_config: {encoding: JSON}` makes every line an object with the replica it comes from and the
ids of the request it is about; `log_level` and `logs_dir` hold for our lines as for Serve's.
"""

from __future__ import annotations

import logging

from orchestrator.telemetry.logs import Fields

OURS = ("orchestrator", "policies", "workers", "deploy")
SERVE = "ray.serve"


class _ToServe(logging.Handler):
    """Passes a record to Serve's logger, with the handlers that it has at that moment."""

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
