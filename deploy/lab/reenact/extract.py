"""Made dialogues.jsonl.xz: python -m deploy.lab.reenact.extract RESULTS, the recordings of
real-pair.yaml. Numbers are rounded to three digits, which changes no decision."""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.evaluation.recorded_answers import answered_calls
from deploy.evaluation.recording import Recording, dumps, load
from deploy.lab.reenact.dialogues import SHIPPED

SETS: Final = ("gsm_symbolic", "chain_sum", "simple_equations", "strangers")
QUESTIONS: Final = 12
POLICIES: Final = {
    "large-only": ("", {}),
    "small-only": ("", {}),
    "specreason": ("", {}),
    "learned-gate": ("-calibrated", {"correct_above": 0.25}),
    "bild": ("-others", {"rollback": 1.5}),
}
"""By policy: what follows the set's name in that of the folder, and parameters."""


def trimmed(recording: Recording, name: str) -> str:
    """A recording's calls alone, without times, under another name."""
    calls = [
        replace(one, answer=replace(one.answer, ms=0.0), ms=0.0)
        for one in answered_calls(recording.events)
    ]
    request = replace(recording.request, request_id=name)
    head, *lines = dumps(Recording(request, tuple(calls))).splitlines()
    rounded = [json.loads(line, parse_float=lambda text: round(float(text), 3)) for line in lines]
    return "\n".join([head, *(json.dumps(one, separators=(",", ":")) for one in rounded), ""])


def main(root: Path) -> None:
    text = ""
    for policy, (suffix, parameters) in POLICIES.items():
        for name in SETS:
            for number in range(QUESTIONS):
                files = sorted((root / f"{name}{suffix}").glob(f"{number:05d}-{policy}*.jsonl"))
                (one,) = [
                    one
                    for one in map(load, files)
                    if parameters.items() <= one.request.parameters.items()
                ]
                text += trimmed(one, f"{name}-{number}")
    SHIPPED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
