#!/usr/bin/env bash
# reasoning-gym 0.1.25, the puzzle24 kind: its question asks for an expression that makes 24 of four
# given numbers. One would expect its scorer to check that these numbers are used. It checks that
# there are four, each in the range of the generator: 6*4*1*1 gets all points whatever was asked.
# Exits 1 if that is not so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from reasoning_gym.factory import create_dataset

print("reasoning-gym", version("reasoning-gym"))
dataset = create_dataset("puzzle24", size=3, seed=5)
scores = []
for entry in (dataset[index] for index in range(3)):
    scores.append(dataset.score_answer("6*4*1*1", entry))
    print("numbers", entry["metadata"]["numbers"], "answer 6*4*1*1 scores", scores[-1])
raise SystemExit(scores != [1.0, 1.0, 1.0])
PYTHON
