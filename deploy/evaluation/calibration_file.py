"""The file that `baton calibrate` and `baton learn` add to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.service.calibration import read
from orchestrator.errors import ConfigError


def document_of(path: Path, pair: dict[str, str]) -> dict[str, Any]:
    """Return the whole file to be added to, or an empty one if it does not exist.

    Raises:
        ConfigError: it is not a calibration file, or belongs to another pair.
    """
    if not path.exists():
        return {"baton_calibration": 1, "pair": pair, "policies": {}}
    if read(path).pair != pair:
        raise ConfigError(f"{path}: belongs to another pair of models; name another file")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    return document
