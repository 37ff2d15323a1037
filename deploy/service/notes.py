"""What users of a deployment should know of it: at its start, in `/v1/models`, in the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploy.service.calibration import read, same_checkpoint
from policies import POLICIES
from policies.coin import Coin
from workers.embedded.remarks import TOY

if TYPE_CHECKING:
    from deploy.service.config import Args
    from deploy.service.worker_spec import Workers


def notes(args: Args) -> list[str]:
    """Return a line on the embedded pair, or on thresholds that were not measured on the pair."""
    return [TOY] if args.workers.embedded else uncalibrated(args)


def uncalibrated(args: Args) -> list[str]:
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
    if workers.embedded:
        return []  # the defaults were measured on them
    # A file of this pair need not have every policy: some the pair cannot run. The policy that is
    # served by default must be in it. The coin uses no scores.
    asked = POLICIES if chosen is None else (args.policy.default,)
    scored = [one for one in asked if POLICIES[one].calibrated and POLICIES[one] is not Coin]
    guessed = [name for name in scored if name not in known]
    if not guessed:
        return []
    named = "FILE" if chosen is None else chosen
    add = ", and name FILE as policy.calibration" if chosen is None else ""
    return [
        f"thresholds were never measured on this pair: {', '.join(guessed)}; they may keep wrong "
        "steps, or rewrite right ones. Measure them: baton calibrate --config CONFIG "
        f"--problems QUESTIONS.jsonl --target-large-share 0.3 --out {named}{add}"
    ]


def pair_of(workers: Workers) -> dict[str, str]:
    """Return the checkpoints of a deployment file's workers, by name."""
    return {name: spec.checkpoint() for name, spec in workers.by_name().items()}


def settings_of(workers: Workers) -> dict[str, Any]:
    """Return what a pair's answers depend on; a log of other settings is not continued."""
    offered = {
        name: [one.model_dump() for one in spec.speculation.offered]
        for name, spec in workers.by_name().items()
    }
    return {"pair": pair_of(workers), "answering": workers.answering(), "speculation": offered}


def _named(pair: dict[str, str]) -> str:
    names = [pair.get(name, "?").partition("@")[0] for name in ("small", "large")]
    return f"{names[0]} with {names[1]}"
