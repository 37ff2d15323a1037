"""A calibration file: thresholds (`baton calibrate --out`) and a gate (`baton learn gate --out`).

A score is one large model's judgement of one small model's steps. So a threshold belongs to a pair
of models, and the file names the pair.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from orchestrator.errors import ConfigError
from workers.text.gguf_tokenizer import is_gguf

SAMPLE = 1 << 20  # bytes read at each end of a file of weights
PLACES = 64  # parts read of a GGUF file, since tuning may change neither of its ends


class CalibratedPolicy(BaseModel, extra="allow"):
    params: dict[str, Any]


class Calibration(BaseModel, extra="allow"):
    """The file; a service reads the fields that are named here.

    `pair` has each worker's checkpoint (see `fingerprint`). For a policy in `unmet` no value met
    the target.
    """

    baton_calibration: Literal[1]
    pair: dict[str, str]
    policies: dict[str, CalibratedPolicy]
    unmet: dict[str, Any] = {}

    def params(self, policy: str) -> dict[str, Any]:
        """Return the policy's calibrated parameters; {} if it was not calibrated."""
        return dict(self.policies[policy].params) if policy in self.policies else {}


def read(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: it cannot be read, or is no calibration file.
    """
    try:
        return Calibration.model_validate(json.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(
            f"{path}: expected a file that `baton calibrate` or `baton learn` wrote"
        ) from None


def to_be_extended(path: Path, pair: dict[str, str]) -> dict[str, Any]:
    """Return the whole file to be added to, or an empty one if it does not exist.

    Raises:
        ConfigError: it is not a calibration file, or belongs to another pair.
    """
    if not path.exists():
        return {"baton_calibration": 1, "pair": pair, "policies": {}}
    found = read(path)
    if found.pair != pair:
        raise ConfigError(f"{path}: belongs to another pair of models; name another file")
    return found.model_dump(exclude_unset=True)


def fingerprint(place: Path | None, name: str) -> str:
    """Return a checkpoint's identity: its name and, for a folder or file, a digest of its weights.

    Weights of many gigabytes are not read whole: the digest takes the size and the first and last
    mebibyte of each file, and for a GGUF file 64 parts of it.
    """
    if place is None:
        return name
    digest = blake2b(digest_size=8)
    for path in [place] if place.is_file() else sorted(place.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            digest.update(f"{path.name}:{size}".encode() + file.read(SAMPLE))
            if is_gguf(path):
                for part in range(1, PLACES):
                    file.seek(part * size // PLACES)
                    digest.update(file.read(SAMPLE // PLACES))
            file.seek(max(0, size - SAMPLE))
            digest.update(file.read())
    return f"{name}@{digest.hexdigest()}"


def same_checkpoint(one: str, other: str) -> bool:
    """Compare two fingerprints, by the weights if both have them, else by the name."""
    (name, _, weights), (others_name, _, others_weights) = one.partition("@"), other.partition("@")
    return weights == others_weights if weights and others_weights else name == others_name
