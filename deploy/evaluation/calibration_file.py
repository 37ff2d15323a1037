"""The file that `baton calibrate` and `baton learn` write: added to, and compared with the pair of
a deployment file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.service.calibration import read, same_checkpoint
from orchestrator.errors import ConfigError
from policies import POLICIES
from policies.coin import Coin
from workers.embedded.checkpoints import EMBEDDED

if TYPE_CHECKING:
    from deploy.service.config import Args, Workers


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


def pair_of(workers: Workers) -> dict[str, str]:
    """Return the checkpoints of a deployment file's workers, by name."""
    return {name: spec.checkpoint() for name, spec in workers.by_name().items()}


def notes(args: Args) -> list[str]:
    """Return a line if the pair runs on thresholds that were not measured on it; else none."""
    workers, chosen, known = args.workers, args.policy.calibration, set[str]()
    if chosen is not None:
        calibration, pair = read(chosen), pair_of(workers)
        measured, known = calibration.pair, {*calibration.policies, *calibration.unmet}
        if not all(same_checkpoint(pair[name], measured.get(name, "")) for name in pair):
            return [
                f"policy.calibration: {chosen} belongs to {_named(measured)}, not to "
                f"{_named(pair)}: its thresholds decide by the scores of other models; run baton "
                "calibrate for this pair"
            ]
    if all((spec.model or "").startswith(EMBEDDED) for spec in workers.by_name().values()):
        return []  # the defaults were measured on them
    # A file of this pair need not have every policy: some the pair cannot run. The policy that is
    # served by default must be in it.
    asked = POLICIES if chosen is None else (args.policy.default,)
    guessed = [
        name
        for name in asked
        if POLICIES[name].calibrated is not None
        and POLICIES[name] is not Coin  # it uses no scores
        and name not in known
    ]
    if not guessed:
        return []
    where = "--out FILE and name it as policy.calibration" if chosen is None else f"--out {chosen}"
    return [
        f"thresholds were never measured on this pair: {', '.join(guessed)}; run baton calibrate "
        f"{where}"
    ]


def _named(pair: dict[str, str]) -> str:
    names = [pair.get(name, "?").partition("@")[0] for name in ("small", "large")]
    return f"{names[0]} with {names[1]}"
