"""The judge's likelihood curve and default scoring, from the development part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from deploy.lab.pair.harvest import Author
from deploy.lab.pair.measure import judge, written_steps
from workers.embedded.checkpoints import JUDGE_FILE


def calibrate(
    small: Path, large: Path, log: Callable[[str], None] = print, count: int = 4000
) -> None:
    """Measure the judge on `count` steps and write down how to use it, beside its weights.

    `likelihood` is 9·P(right), by a logistic fit of the large model's minimum log-probability in
    the step. The scoring that separates right from wrong steps better becomes the default.
    """
    figures = judge(Author(large), written_steps(Author(small), "dev", 0, count))
    digit, likelihood = figures["digit_auc"], figures["likelihood_auc"]
    scoring = "expected" if digit >= likelihood else "likelihood"
    curve = [figures["intercept"], figures["slope"]]
    policy = {"judge": "short", "scoring": scoring, "likelihood": curve}
    (large / JUDGE_FILE).write_text(json.dumps({"policy": policy, "dev": figures}, indent=2) + "\n")
    log(json.dumps(figures))
