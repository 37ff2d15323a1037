"""Compare the greedy texts of two versions: `python -m tests.house.same_texts BEFORE AFTER`.

Each is a folder of folders that `baton eval --recordings` made, one version each, with the same
problems and policies. Answers are compared with all their steps: author, text and fate. The exit
status is 1 if one differs or is missing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

Key = tuple[str, int, str, int | None]


def texts(folder: Path) -> dict[Key, Any]:
    """What was written, by the name of the run, problem, policy and budget."""
    found: dict[Key, Any] = {}
    for file in sorted(folder.glob("*/rows.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "problem" not in row:
                continue
            steps = [(s["author"], s["text"], s["accepted"]) for s in row["steps"]]
            key = (file.parent.name, row["problem"], row["policy"], row["budget"])
            found[key] = (row["text"], steps, row["error"])
    return found


def main(before: Path, after: Path) -> int:
    old, new = texts(before), texts(after)
    compared: Counter[tuple[str, str]] = Counter()
    differing: Counter[tuple[str, str]] = Counter()
    for key in sorted(old.keys() | new.keys(), key=str):
        run, _, policy, _ = key
        compared[run, policy] += 1
        if old.get(key) != new.get(key):
            differing[run, policy] += 1
            print(f"differs: {key}\n  before: {old.get(key)}\n  after:  {new.get(key)}")
    for (run, policy), n in sorted(compared.items()):
        print(f"{run:12} {policy:28} {n - differing[run, policy]} of {n} equal")
    print(f"{compared.total() - differing.total()} of {compared.total()} answers are equal")
    return 1 if differing or not compared else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
