"""The words of the generated problems by name, from `words/*.yaml`.

The last two wordings of each list are kept out of training, to measure the effect of an unknown
wording. No wording of a question has a reflection keyword (`deploy.lab.pair.steps.KEYWORDS`): in
chains of thought those occur only if the model reflects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KEPT_OUT = 2
"""The number of wordings at the end of each list that are kept out of training."""
Wordings = list[str]


def read_words(folder: Path) -> dict[str, Any]:
    """The lists in the files of a folder, by name."""
    words: dict[str, Any] = {}
    for file in sorted(folder.glob("*.yaml")):
        words |= yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return words


WORDS = read_words(Path(__file__).parent / "words")
